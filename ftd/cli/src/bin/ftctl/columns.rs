//! The columns of the tables, and what the words in them mean.

/// Its heading, and what stands in it.
pub type Column = (&'static str, &'static str);

/// `ftctl jobs`.
pub const JOBS: [Column; 10] = [
    ("JOB", "its name"),
    ("USER", "whose it is"),
    ("RANKS", "how many"),
    ("MODE", "--ft: none, or reinit, which recovers"),
    ("STATE", "starting, computing, recovering, paused (stopped), ending, or joining as a spare"),
    ("EPOCH", "from one failure to the next, counted from 1 on"),
    ("CHECKPOINT", "the newest version that every rank has taken, and how old it is"),
    ("FAILURES", "how many epochs have ended by failures"),
    ("FOR", "how long it has run"),
    ("PROGRAM", "what runs, with its arguments"),
];

/// The ranks of `ftctl show`.
pub const RANKS: [Column; 10] = [
    ("RANK", "its number in MPI_COMM_WORLD"),
    ("NODE", "where it runs"),
    ("PID", "its process there"),
    ("CPU", "the processor on which it ran last"),
    ("ALLOWED", "the processors on which it may run"),
    ("CHECKPOINTS", "how many it has taken (ft_checkpoint), whatever process was the rank"),
    ("NEWEST", "the version of its newest one in this epoch"),
    ("BYTES", "of all of them together"),
    ("IN THE CALL", "how long it was in ft_checkpoint, all calls together"),
    ("MEMORY", "of its arena, where its newest versions lie"),
];

/// `ftctl checkpoint-cost`.
pub const COST: [Column; 7] = [
    ("RANK", "its number in MPI_COMM_WORLD; the last line is all ranks together"),
    ("CHECKPOINTS", "how many it has taken (ft_checkpoint), whatever process was the rank"),
    ("BYTES", "of all of them together"),
    ("IN THE CALL", "how long it was in ft_checkpoint, all calls together"),
    ("EACH", "the same for one checkpoint, on average"),
    ("LAST COPY", "how long it took to copy the last one into the arena"),
    ("OF THE TIME", "the time in the call, as a part of that for which the job has run"),
];

const WORDS: [Column; 5] = [
    ("version", "a checkpoint's number, which the program chooses: complete when all ranks have it"),
    ("arena", "the memory in which ftd keeps a rank's newest versions, outside its process"),
    ("world", "the processes of one MPI_COMM_WORLD: each recovery ends one and starts the next"),
    ("epoch", "from one failure to the next; one may end before its world computes"),
    ("in a row", "deaths without a newer complete version, or 30 s of computing, between"),
];

/// A line of headings.
pub fn heads(columns: &[Column]) -> Vec<String> {
    columns.iter().map(|(head, _)| (*head).into()).collect()
}

fn lines(columns: &[Column]) -> String {
    columns.iter().map(|(name, what)| format!("  {name:<12} {what}\n")).collect()
}

/// What the columns are, for the help.
pub fn help(columns: &[Column]) -> String {
    format!("Columns:\n{}", lines(columns))
}

/// The same, and the words above the table.
pub fn help_and_words(columns: &[Column]) -> String {
    format!("{}\nWords:\n{}", help(columns), lines(&WORDS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn the_man_page_has_every_column_and_word() {
        let page = include_str!("../../../../../docs/man/ftctl.1").replace("\\-", "-");
        let events = json::EVENTS.map(|(kind, what)| (json::kind(kind), what));
        for (name, what) in JOBS.iter().chain(&RANKS).chain(&COST).chain(&WORDS).chain(&events) {
            assert!(what.len() <= 81, "the help would have two lines of it: {what}");
            assert!(page.contains(&format!(".TP\n.B {name}\n{what}\n")), "{name} is not in docs/man/ftctl.1: {what}");
        }
    }
}
