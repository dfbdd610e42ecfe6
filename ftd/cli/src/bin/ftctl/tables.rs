//! What people read.

use crate::columns;
use crate::find::Found;
use crate::json;
use ft_sys::span;
use ft_wire::ask::{Checkpoints, Event, Job};
use ftd_core::{counted, size, times};
use nix::unistd::{Uid, User};
use std::fmt::Write;

/// Lines of columns, each as wide as what stands in it; the last one as it is.
fn table(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            match widths.get_mut(at) {
                Some(width) => *width = (*width).max(cell.chars().count()),
                None => widths.push(cell.chars().count()),
            }
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(String::from).to_vec()
}

/// What others have written, without what would command a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn program(job: &Job) -> String {
    let words: Vec<_> = job.argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
    plain(&words.join(" "))
}

/// A time that may be short, in milliseconds.
fn lapse(ms: u64) -> String {
    if ms < 100 { format!("{ms} ms") } else { span::shown(ms) }
}

/// A user, by his name where the system knows that.
fn user(uid: u32) -> String {
    let known = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    known.map_or_else(|| uid.to_string(), |user| format!("{} ({uid})", plain(&user.name)))
}

fn complete(job: &Job) -> String {
    match job.complete {
        None => "none".into(),
        Some(complete) => match complete.age_ms {
            Some(age) => format!("{}, {} old", complete.version, lapse(age)),
            None => format!("{}, restored", complete.version),
        },
    }
}

/// `ftctl jobs`.
pub fn jobs(jobs: &[(Found, Job)]) -> String {
    if jobs.is_empty() {
        return "no jobs of this user run here\n".into();
    }
    let mut rows = vec![columns::heads(&columns::JOBS)];
    for (found, job) in jobs {
        rows.push(row([
            &plain(&job.name),
            &user(found.uid),
            &job.world_size.to_string(),
            &plain(&job.mode),
            json::state(job.state),
            &job.epoch.to_string(),
            &complete(job),
            &job.failures.number.to_string(),
            &span::shown(job.up_ms),
            &program(job),
        ]));
    }
    table(&rows)
}

fn number<T: ToString>(of: Option<T>) -> String {
    of.map_or_else(|| "-".into(), |of| of.to_string())
}

/// `ftctl show`.
pub fn job(found: &Found, job: &Job) -> String {
    let mut text =
        format!("job         {}, of user {}: {}\n", plain(&job.name), user(found.uid), json::state(job.state));
    let mut line = |name: &str, words: &str| {
        let _ = writeln!(text, "{name:<12}{words}");
    };
    line("program", &program(job));
    let (ranks, mode, epoch, world) = (counted(job.world_size, "rank"), plain(&job.mode), job.epoch, job.world);
    line("", &format!("{ranks}, --ft={mode}, epoch {epoch}, world {world}, for {}", span::shown(job.up_ms)));
    line("ftrun", &format!("{}, its agent {}", number(found.ftrun(job)), job.agent));
    line("checkpoint", &complete(job));
    let memory: u64 = job.processes.iter().filter_map(|process| process.checkpoints).map(|of| of.memory).sum();
    line("memory", &format!("{} of arenas, {} of other nodes' copies", size(memory), size(job.copies)));
    line("failures", &format!("{}; {}", job.failures.number, more(job)));
    for (who, deaths) in &job.failures.in_a_row {
        let in_a_row = if *deaths == 1 { "" } else { " in a row" };
        line("", &format!("{} died {}{in_a_row}", plain(who), times(*deaths)));
    }
    for past in &job.failures.past {
        line(
            "",
            &format!("epoch {} ended {} after the start: {}", past.epoch, span::shown(past.at_ms), plain(&past.what)),
        );
    }
    for (at, injection) in job.injections.iter().enumerate() {
        let name = if at == 0 { "injections" } else { "" };
        line(name, &format!("rank {} is to die {}", injection.rank, injection.when()));
    }
    let others = json::silent(job);
    if !others.is_empty() {
        line("silent", &format!("{}: what their ranks do is not known here", plain(&others.join(", "))));
    }
    let mut rows = vec![columns::heads(&columns::RANKS)];
    for place in &job.ranks {
        let process = job.processes.iter().find(|process| process.rank == place.rank);
        let of = process.and_then(|process| process.checkpoints);
        rows.push(row([
            &place.rank.to_string(),
            &plain(job.nodes.get(place.node as usize).map_or("-", |node| &node.name)),
            &number(process.and_then(|process| process.pid)),
            &number(process.and_then(|process| process.processor)),
            &process.map_or_else(|| "-".into(), |process| plain(&process.allowed)),
            &number(of.map(|of| of.number)),
            &number(of.and_then(|of| of.newest)),
            &number(of.map(|of| size(of.bytes))),
            &number(of.map(|of| seconds(of.spent_us))),
            &number(of.map(|of| size(of.memory))),
        ]));
    }
    format!("{text}\n{}", table(&rows))
}

/// How many more end the job.
fn more(job: &Job) -> String {
    match (json::left(job), json::survives_none(job)) {
        (left, true) => format!("{left} ends the job (--ft=none)"),
        (1, false) => format!("1 more ends the job (--ft-max-failures {})", job.failures.most),
        (left, false) => format!("{left} more in a row end the job (--ft-max-failures {})", job.failures.most),
    }
}

fn seconds(us: u64) -> String {
    if us < 100_000 { format!("{:.2} ms", us as f64 / 1e3) } else { format!("{:.3} s", us as f64 / 1e6) }
}

/// A part of the time in hundredths.
fn percent(part: f64) -> String {
    format!("{:.2} %", 100.0 * part)
}

/// `ftctl checkpoint-cost`.
pub fn cost(job: &Job) -> String {
    let mut rows = vec![columns::heads(&columns::COST)];
    for process in &job.processes {
        let Some(Checkpoints { number, bytes, spent_us, copy_us, .. }) = process.checkpoints else { continue };
        rows.push(row([
            &process.rank.to_string(),
            &number.to_string(),
            &size(bytes),
            &seconds(spent_us),
            &format!("{:.2} ms", spent_us as f64 / 1e3 / f64::from(number.max(1))),
            &format!("{:.2} ms", copy_us as f64 / 1e3),
            &percent(json::share(job, 1, spent_us)),
        ]));
    }
    let total = json::total(job);
    rows.push(row([
        "all",
        &total.number.to_string(),
        &size(total.bytes),
        &seconds(total.spent_us),
        &format!("{:.2} ms", total.spent_us as f64 / 1e3 / total.number.max(1) as f64),
        "-",
        &percent(json::share(job, total.ranks, total.spent_us)),
    ]));
    let others = json::silent(job);
    let silent = if others.is_empty() { String::new() } else { format!("silent: {}\n", plain(&others.join(", "))) };
    if total.ranks == 0 && json::survives_none(job) {
        return format!("no checkpoint is kept with --ft=none\n{silent}");
    }
    if total.ranks == 0 {
        return format!("no rank has used ft_checkpoint\n{silent}");
    }
    format!("{}{silent}", table(&rows))
}

/// `ftctl events`.
pub fn event(event: &Event) -> String {
    let ms = event.at_ms % 86_400_000;
    let at = format!("{:02}:{:02}:{:02}.{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    let version = event.version.map(|version| format!("version {version}")).unwrap_or_default();
    let status = event.status.map(|status| format!("status {status} ")).unwrap_or_default();
    let mut lines = event.text.lines();
    let first = plain(lines.next().unwrap_or_default());
    let head = format!("{at} UTC  epoch {:<3} {:<11}  {status}{version}{first}", event.epoch, json::kind(event.kind));
    let rest: String = lines.map(|line| format!("    {}\n", plain(line))).collect();
    format!("{}\n{rest}", head.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ft_wire::ask::{Failures, Process, State};

    fn job() -> Job {
        let process = |rank, number, bytes, spent_us| Process {
            rank,
            pid: Some(7),
            processor: None,
            allowed: "0".into(),
            checkpoints: Some(Checkpoints { number, bytes, spent_us, copy_us: 10, newest: None, memory: 0 }),
        };
        Job {
            name: "ftrun-1-a".into(),
            mode: "reinit".into(),
            argv: vec![b"a".to_vec()],
            world_size: 3,
            launcher: 1,
            agent: 2,
            state: State::Computing,
            up_ms: 10_000,
            epoch: 1,
            world: 1,
            nodes: Vec::new(),
            here: 0,
            ranks: Vec::new(),
            processes: vec![
                process(0, 10, 1_263_219_507, 300_000),
                process(1, 10, 1024, 100_000),
                Process { checkpoints: None, ..process(2, 0, 0, 0) },
            ],
            complete: None,
            copies: 0,
            injections: Vec::new(),
            failures: Failures { number: 0, most: 5, in_a_row: Vec::new(), past: Vec::new() },
        }
    }

    #[test]
    fn what_all_ranks_together_have_checkpointed_is_the_last_line() {
        let text = cost(&job());
        let last: Vec<&str> = text
            .lines()
            .last()
            .unwrap_or_default()
            .split("  ")
            .filter(|word| !word.is_empty())
            .map(str::trim)
            .collect();
        // 400 ms of twice 10 s: of a rank that has not used it there is no part.
        assert_eq!(last, ["all", "20", "1.2 GiB", "0.400 s", "20.00 ms", "-", "2.00 %"], "{text}");
        let mut none = job();
        none.processes.iter_mut().for_each(|process| process.checkpoints = None);
        assert_eq!(cost(&none), "no rank has used ft_checkpoint\n");
        none.mode = "none".into();
        assert_eq!(cost(&none), "no checkpoint is kept with --ft=none\n");
    }

    #[test]
    fn short_times_are_milliseconds_and_users_have_names() {
        assert_eq!([0, 99_999, 100_000].map(seconds), ["0.00 ms", "100.00 ms", "0.100 s"]);
        assert_eq!([0, 99, 100].map(lapse), ["0 ms", "99 ms", "0.1 s"]);
        assert_eq!(user(0), "root (0)");
        assert_eq!(user(u32::MAX - 7), (u32::MAX - 7).to_string());
    }
}
