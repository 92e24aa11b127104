//! The client: its gate against the recorded traces, its session as stories, its sockets against a scripted server.

mod gate;
