//! A publish/subscribe server on tokio-tungstenite, as fast as its documentation lets it be: one thread, one task a
//! connection, one broadcast channel. Usage: `tungstenite-peer PORT`.

use futures_util::{SinkExt, StreamExt};
use std::net::Ipv4Addr;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async_with_config};

/// Messages that a task may fall behind before it loses some.
const CHANNEL: usize = 4096;
/// tungstenite clears its read buffer at each read; its default of 128 KiB makes that the larger part of the work.
const READ_BUFFER: usize = 4096;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let Some(port) = std::env::args().nth(1).and_then(|port| port.parse::<u16>().ok()) else {
        eprintln!("usage: tungstenite-peer PORT");
        std::process::exit(2);
    };
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    let listener = socket.listen(4096)?;
    let (topic, _) = broadcast::channel(CHANNEL);
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, topic.clone()));
        }
    }
}

/// One connection, until it ends.
async fn serve(stream: TcpStream, topic: broadcast::Sender<Message>) {
    let mut path = String::new();
    #[allow(clippy::result_large_err)]
    let note = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
        request.uri().path().clone_into(&mut path);
        Ok(response)
    };
    let config = WebSocketConfig::default().read_buffer_size(READ_BUFFER).write_buffer_size(0);
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let Ok(socket) = accept_hdr_async_with_config(stream, note, Some(config)).await else { return };
    match path.as_str() {
        "/sub" => subscriber(socket, topic.subscribe()).await,
        "/pub" => publisher(socket, topic).await,
        _ => echo(socket).await,
    }
}

async fn subscriber(mut socket: WebSocketStream<TcpStream>, mut topic: broadcast::Receiver<Message>) {
    loop {
        tokio::select! {
            event = topic.recv() => match event {
                Ok(message) => if socket.send(message).await.is_err() { return },
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            // Pings are answered inside; anything else a subscriber says is ignored.
            message = socket.next() => if !matches!(message, Some(Ok(_))) { return },
        }
    }
}

async fn publisher(mut socket: WebSocketStream<TcpStream>, topic: broadcast::Sender<Message>) {
    while let Some(Ok(message)) = socket.next().await {
        if message.is_binary() {
            // An error means that nobody listens.
            let _ = topic.send(message);
        }
    }
}

async fn echo(mut socket: WebSocketStream<TcpStream>) {
    while let Some(Ok(message)) = socket.next().await {
        if message.is_binary() && socket.send(message).await.is_err() {
            return;
        }
    }
}
