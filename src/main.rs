//! The `kneeboard` command.
use std::process::ExitCode;

fn main() -> ExitCode {
    kneeboard::cli::main()
}
