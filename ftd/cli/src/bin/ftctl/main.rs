//! `ftctl`: shows its user the jobs of his that run on this machine or on other nodes, and has ranks fail on request.

mod ask;
mod columns;
mod daemon;
mod find;
mod json;
mod tables;
mod way;
mod words;

use ask::AskError;
use clap::{Args, Parser, Subcommand};
use find::{All, FindError, Found};
use ft_wire::ask::{Event, FromAgent, Job, ToAgent};
use ft_wire::injection::{Injection, InjectionError, Place};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::process::ExitCode;

/// So many events are known again when another agent tells of them: as many as several nodes remember.
const NEWEST: usize = 1024;

/// Why nothing comes of it; one sentence.
#[derive(Debug, thiserror::Error)]
enum CtlError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error(transparent)]
    Injection(#[from] InjectionError),
    #[error(transparent)]
    Words(#[from] words::WordsError),
    #[error("standard output cannot be written: {0}")]
    Output(#[from] io::Error),
}

#[derive(Parser, Debug)]
#[command(
    name = "ftctl",
    version = ft_wire::release(),
    about = "Shows the jobs of ftrun that run on this machine, or on a cluster's nodes, and has their ranks fail on request.",
    after_help = "JOB is a job's name, the beginning of it or the number in it, or the process id of its ftrun or, on this machine, of one \
                  of its ranks; it may be left out where there is only one job.\n\nA user sees and touches his own jobs, root those of all. They are looked for in $FT_MEMORY_DIR (/dev/shm), \
                  and on other nodes through this node's ftd ($FT_DAEMON).\n\n\
                  Examples:\n  ftctl jobs\n  ftctl show\n  ftctl inject 12345 rank=2,after=10s\n  ftctl events 12345 --follow",
    max_term_width = 110,
    disable_help_subcommand = true
)]
struct Arguments {
    /// Writes JSON, for programs: one object, but of events one a line (JSON Lines); see ftctl.schema.json in ftd's documentation
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    what: What,
}

#[derive(Args, Debug)]
struct Whose {
    /// Which job: its name, the beginning of it, the number in it, or the process id of its ftrun or of a rank [default: the only one]
    job: Option<String>,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Lists the jobs
    #[command(after_help = columns::help(&columns::JOBS))]
    Jobs,
    /// Shows a job: nodes, processes (pids) and processors of its ranks, its newest checkpoint and its age, its failures
    #[command(after_help = columns::help_and_words(&columns::RANKS))]
    Show(Whose),
    /// Tells what has happened in a job, or what happens (--follow)
    #[command(after_help = events_there_are())]
    Events {
        #[command(flatten)]
        whose: Whose,
        /// Goes on, after what has happened, with what happens, until the job ends
        #[arg(long, short)]
        follow: bool,
    },
    /// Has a rank killed by SIGKILL, to see what comes of it
    #[command(after_help = places(), override_usage = "ftctl inject [OPTIONS] [JOB] rank=N[,after=TIME][,at=PLACE]")]
    Inject {
        /// Which job: its name, the beginning of it, the number in it, or the process id of its ftrun or of a rank [default: the only one]
        job: Option<String>,
        /// Who, when and where: rank=N[,after=TIME][,at=PLACE]
        what: Option<String>,
        #[arg(hide = true)]
        more: Vec<String>,
    },
    /// Shows what a job's checkpoints have cost so far: number, bytes, time
    #[command(after_help = columns::help(&columns::COST))]
    CheckpointCost(Whose),
}

fn places() -> String {
    let lines = Place::ALL.map(|(_, name, what)| format!("  {name:<17} {what}\n"));
    format!("Places:\n{}", lines.concat())
}

fn events_there_are() -> String {
    let lines = json::EVENTS.map(|(kind, what)| format!("  {:<12} {what}\n", json::kind(kind)));
    format!("The history comes first: the newest 128 events are remembered.\n\nEvents:\n{}", lines.concat())
}

fn main() -> ExitCode {
    if way::is_wanted() {
        return way::be();
    }
    let arguments = Arguments::try_parse().unwrap_or_else(|error| {
        let Some(sentence) = words::unknown(&error, &std::env::args().skip(1).collect::<Vec<_>>()) else {
            error.exit()
        };
        let _ = writeln!(io::stderr(), "ftctl: {sentence}");
        std::process::exit(words::WRONG.into())
    });
    match run(&arguments) {
        // Who reads no more has seen enough.
        Err(CtlError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "ftctl: {error}");
            if matches!(error, CtlError::Words(_)) { ExitCode::from(words::WRONG) } else { ExitCode::FAILURE }
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), CtlError> {
    let json = arguments.json;
    match &arguments.what {
        What::Jobs => {
            let All { jobs, mut silent, unknown } = find::jobs()?;
            let last = silent.pop();
            silent.iter().try_for_each(|error| writeln!(io::stderr(), "ftctl: {error}"))?;
            unknown.iter().try_for_each(|sentence| writeln!(io::stderr(), "ftctl: {sentence}"))?;
            if json {
                print(&json::jobs(&jobs))?;
            } else if last.is_none() || !jobs.is_empty() {
                print(&tables::jobs(&jobs))?;
            }
            last.map_or(Ok(()), |error| Err(error.into()))
        }
        What::Show(whose) => {
            let (found, job) = find::one(whose.job.as_deref(), false)?;
            print(&if json { json::job(&found, &job) } else { tables::job(&found, &job) })
        }
        What::CheckpointCost(whose) => {
            let (found, job) = find::one(whose.job.as_deref(), false)?;
            print(&if json { json::cost(&found, &job) } else { tables::cost(&job) })
        }
        What::Inject { job, what, more } => {
            let words: Vec<&str> = job.iter().chain(what).chain(more).map(String::as_str).collect();
            let (job, what) = words::job_and_what(&words)?;
            let injection = Injection::parse(what)?;
            let (found, job) = find::one(job, true)?;
            let said = ask::noted(&found, &ToAgent::Inject(injection))?;
            print(&if json { json::noted(&job, &said) } else { format!("{said}\n") })
        }
        What::Events { whose, follow } => {
            let (found, job) = find::one(whose.job.as_deref(), false)?;
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
    let mut written = Written { job, json, newest: VecDeque::new() };
    // What other nodes remember comes behind.
    let mut remembered = Some(Vec::new());
    loop {
        match ask::next(&mut link, found, follow && remembered.is_none())? {
            Some(FromAgent::Event(event)) => match &mut remembered {
                Some(events) => events.push(event),
                None if written.write(event)? => return Ok(()),
                None => {}
            },
            Some(FromAgent::Refused(sentence)) => return Err(AskError::Refused(sentence).into()),
            Some(FromAgent::Told) => {
                if written.write_all(remembered.take().unwrap_or_default())? || !follow {
                    return Ok(());
                }
            }
            Some(_) => {}
            // Its agent has died. The next one listens at the same place, unless the job has ended without a word.
            None if follow => match ask::ask(found, &ToAgent::Events { follow }) {
                Ok(again) => (link, remembered) = (again, Some(remembered.unwrap_or_default())),
                Err(_) => return written.write_all(remembered.unwrap_or_default()).map(drop),
            },
            None => return written.write_all(remembered.unwrap_or_default()).map(drop),
        }
    }
}

/// What has been written of a job.
struct Written<'a> {
    job: &'a Job,
    json: bool,
    newest: VecDeque<Event>,
}

impl Written<'_> {
    /// Writes one event, unless another agent had told of it. Whether it is the last one.
    fn write(&mut self, event: Event) -> Result<bool, CtlError> {
        if self.newest.contains(&event) {
            return Ok(false);
        }
        print(&if self.json { json::event(self.job, &event) } else { tables::event(&event) })?;
        let is_last = event.status.is_some();
        self.newest.push_back(event);
        if self.newest.len() > NEWEST {
            self.newest.pop_front();
        }
        Ok(is_last)
    }

    /// The same for several, in the order of their time.
    fn write_all(&mut self, mut events: Vec<Event>) -> Result<bool, CtlError> {
        events.sort_by_key(|event| event.at_ms);
        let mut is_over = false;
        for event in events {
            is_over |= self.write(event)?;
        }
        Ok(is_over)
    }
}

#[cfg(test)]
#[path = "../../completion.rs"]
mod completion;

#[cfg(test)]
mod tests {
    use super::Arguments;
    use clap::CommandFactory;

    #[test]
    fn the_completions_are_those_of_these_commands() {
        super::completion::compare(&Arguments::command(), "ftctl");
    }
}
