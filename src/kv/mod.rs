//! The paged KV cache: how many blocks there are, their free queue, and the reuse of full blocks with equal
//! content.

mod pool;
mod prefix;
pub mod sizing;

pub use pool::{BlockTable, KvCache};
pub use prefix::{BlockKey, TokenStream};
