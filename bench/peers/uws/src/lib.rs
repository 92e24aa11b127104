//! Nothing: this package exists for its lock file. See main.cpp.
