//! The crate `quire` on tiny models: that each part of it does what it says.

mod chat;
mod closures;
mod documents;
mod errors;
mod lifetime;
mod models;
mod outputs;
mod polling;
mod raw;
mod snapshots;
mod stores;
mod streams;
mod threads;
