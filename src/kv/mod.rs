//! KV cache: how many blocks there are.

pub mod sizing;
