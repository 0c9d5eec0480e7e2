//! The `kneeboard` command.
fn main() {}
