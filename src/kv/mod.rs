//! The paged KV cache: blocks, their free queue, and the reuse of full blocks with equal content.

mod pool;
mod prefix;

pub use pool::{BlockTable, KvCache};
pub use prefix::{BlockKey, TokenStream};
