//! `ftctl`: shows its user the jobs of his that run on this machine, and has ranks fail on request.

mod ask;
mod find;
mod json;
mod tables;

use ask::AskError;
use clap::{Args, Parser, Subcommand};
use find::{FindError, Found};
use ft_wire::ask::{FromAgent, Job, ToAgent};
use ft_wire::injection::{Injection, InjectionError, Place};
use std::io::{self, Write};
use std::process::ExitCode;

/// Why nothing comes of it; one sentence.
#[derive(Debug, thiserror::Error)]
enum CtlError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error(transparent)]
    Injection(#[from] InjectionError),
    #[error("standard output cannot be written: {0}")]
    Output(#[from] io::Error),
}

#[derive(Parser, Debug)]
#[command(
    name = "ftctl",
    version,
    about = "Shows the jobs of ftrun that run on this machine, and has their ranks fail on request.",
    after_help = "JOB is a job's name, the beginning of it, or the process id of its ftrun; it may be left out where there is only one \
                  job.\n\nA user sees and touches his own jobs, root those of all. They are looked for in $FT_MEMORY_DIR (/dev/shm).\n\n\
                  Examples:\n  ftctl jobs\n  ftctl show\n  ftctl inject 12345 rank=2,after=10s\n  ftctl events 12345 --follow",
    max_term_width = 110,
    disable_help_subcommand = true
)]
struct Arguments {
    /// Writes JSON, for programs: see ftctl.schema.json in ftd's documentation
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    what: What,
}

#[derive(Args, Debug)]
struct Whose {
    /// Which job
    job: Option<String>,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Lists the jobs
    Jobs,
    /// Shows a job: where its ranks run, its checkpoints, its failures
    Show(Whose),
    /// Tells what has happened in a job
    Events {
        #[command(flatten)]
        whose: Whose,
        /// Goes on with what happens, until the job ends
        #[arg(long, short)]
        follow: bool,
    },
    /// Has a rank killed by SIGKILL, to see what comes of it
    #[command(after_help = places())]
    Inject {
        /// Which job
        job: String,
        /// Who, when and where: rank=N[,after=TIME][,at=PLACE]
        what: String,
    },
    /// Shows what a job's checkpoints have cost so far
    CheckpointCost(Whose),
}

fn places() -> String {
    let lines = Place::ALL.map(|(_, name, what)| format!("  {name:<17} {what}\n"));
    format!("Places:\n{}", lines.concat())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        // Who reads no more has seen enough.
        Err(CtlError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "ftctl: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), CtlError> {
    let json = arguments.json;
    match &arguments.what {
        What::Jobs => {
            let (jobs, silent) = find::jobs()?;
            silent.iter().try_for_each(|error| writeln!(io::stderr(), "ftctl: {error}"))?;
            print(&if json { json::jobs(&jobs) } else { tables::jobs(&jobs) })
        }
        What::Show(whose) => {
            let (found, job) = find::one(whose.job.as_deref())?;
            print(&if json { json::job(&found, &job) } else { tables::job(&found, &job) })
        }
        What::CheckpointCost(whose) => {
            let (found, job) = find::one(whose.job.as_deref())?;
            print(&if json { json::cost(&found, &job) } else { tables::cost(&job) })
        }
        What::Inject { job, what } => {
            let injection = Injection::parse(what)?;
            let (found, job) = find::one(Some(job))?;
            let said = ask::noted(&found, &ToAgent::Inject(injection))?;
            print(&if json { json::noted(&job, &said) } else { format!("{said}\n") })
        }
        What::Events { whose, follow } => {
            let (found, job) = find::one(whose.job.as_deref())?;
            events(&found, &job, *follow, json)
        }
    }
}

fn print(text: &str) -> Result<(), CtlError> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Writes what has happened, and what happens until the job ends.
fn events(found: &Found, job: &Job, follow: bool, json: bool) -> Result<(), CtlError> {
    let mut link = ask::ask(found, &ToAgent::Events { follow })?;
    loop {
        match ask::next(&mut link, found, follow)? {
            Some(FromAgent::Event(event)) => {
                print(&if json { json::event(job, &event) } else { tables::event(&event) })?;
                if event.status.is_some() {
                    return Ok(());
                }
            }
            Some(FromAgent::Refused(sentence)) => return Err(AskError::Refused(sentence).into()),
            Some(FromAgent::Told) if !follow => return Ok(()),
            Some(_) => {}
            // Its agent has died. The next one listens at the same place, unless the job has ended without a word.
            None if follow => match ask::ask(found, &ToAgent::Events { follow }) {
                Ok(again) => link = again,
                Err(_) => return Ok(()),
            },
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use clap::CommandFactory;
    use clap_complete::Shell;

    #[test]
    fn the_completions_are_those_of_these_commands() {
        for (shell, name) in [(Shell::Bash, "ftctl.bash"), (Shell::Zsh, "_ftctl")] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "ftctl", &mut text);
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/completion").join(name);
            if std::env::var_os("FT_TEST_WRITE").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            let is_same = std::fs::read(&path).unwrap() == text;
            assert!(
                is_same,
                "deploy/completion/{name} is of others: FT_TEST_WRITE=1 cargo test -p ftrun writes it anew"
            );
        }
    }
}
