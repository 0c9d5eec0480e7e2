//! The paged KV cache: how many blocks there are, their free queue, and the reuse of full blocks with equal
//! content.

mod chain;
mod pool;
mod prefix;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod reference;
pub mod sizing;
mod stream;

/// The most KV blocks that an engine may have. Eight times what the largest GPUs of today hold in blocks of 16
/// tokens; with prefix caching each block takes about 40 bytes of the simulator's memory.
pub const MAX_BLOCKS: u32 = 1 << 24;

pub use pool::{BlockTable, KvCache};
pub use stream::TokenStream;
