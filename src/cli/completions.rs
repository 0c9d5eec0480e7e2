//! `kneeboard completions SHELL`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Outcome, print};

/// Which shell.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to complete for.
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &CompletionsArgs) -> anyhow::Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "kneeboard", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Done)
}
