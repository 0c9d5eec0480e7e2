//! The command line. Only this floor knows clap; one file a subcommand.

pub mod calibrate;

/// How a command ended; the process's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Done.
    Done = 0,
    /// The run failed.
    Failed = 1,
    /// Bad usage or bad input.
    BadInput = 2,
    /// It finished, but a check that was asked for failed.
    CheckFailed = 3,
    /// Nothing feasible was found.
    NothingFeasible = 4,
    /// Interrupted; what was finished is kept.
    Interrupted = 130,
}
