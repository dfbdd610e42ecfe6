use super::*;
use proptest::prelude::*;

const NOW: fn() -> Instant = Instant::now;

/// A job of one rank, and what was shown of it.
#[derive(Default)]
struct Bench {
    once: Once,
    world: World,
    screen: Vec<u8>,
}

impl Bench {
    fn begin(&mut self, restored: Option<Commit>) {
        self.world += 1;
        self.once.begins(self.world, restored);
    }

    fn print(&mut self, text: &str) {
        let shown = self.once.print((self.world, 0), text.as_bytes().to_vec(), NOW());
        self.screen.extend(shown);
    }

    fn mark(&mut self, version: Version) {
        let shown = self.once.mark((self.world, 0), (version, self.world), true, NOW());
        self.screen.extend(shown);
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen).into_owned()
    }
}

#[test]
fn what_is_printed_again_is_not_shown_again() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print("banner\nstep 1\n\nst");
    bench.print("ep 2\n");
    bench.begin(None);
    bench.print("banner\nst");
    bench.print("ep 1\n\nstep 2\nstep 3\n");
    assert_eq!(bench.screen(), "banner\nstep 1\n\nstep 2\nstep 3\n");
}

#[test]
fn what_was_printed_before_the_restored_version_is_new() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print("banner\nstep 1\n");
    bench.mark(1);
    bench.print("step 2\n");
    bench.begin(Some((1, 1)));
    bench.print("banner\nstep 2\nstep 3\n");
    assert_eq!(bench.screen(), "banner\nstep 1\nstep 2\nbanner\nstep 3\n");
    bench.begin(Some((7, 1)));
    bench.print("step 3\n");
    assert!(bench.screen().ends_with("step 3\nstep 3\n"), "of a version that nobody knows nothing is known");
}

#[test]
fn other_lines_are_shown_in_their_place_and_known_the_next_time() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print("a\ntime 1\nb\nc\n");
    bench.begin(None);
    bench.print("a\ntime 2\nb\n");
    bench.begin(None);
    bench.print("a\ntime 2\nb\ntime 3\nc\nd\n");
    assert_eq!(bench.screen(), "a\ntime 1\nb\nc\ntime 2\ntime 3\nd\n");
}

#[test]
fn a_newer_version_than_ever_ends_it() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.mark(1);
    bench.print("\n");
    bench.mark(2);
    bench.print("same\nstamp 1\nsame\n");
    bench.begin(Some((1, 1)));
    bench.print("\n");
    bench.mark(2);
    bench.print("same\nstamp 2\nsam");
    bench.mark(3);
    bench.print("e\nsame\n");
    assert_eq!(bench.screen(), "\nsame\nstamp 1\nsame\nstamp 2\nsame\nsame\n", "what ends behind the mark is new");
}

#[test]
fn what_was_printed_before_it_is_known_what_is_restored_is_shown() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print("a\nb\n");
    bench.world = 2;
    bench.print("a\n");
    bench.once.begins(2, None);
    bench.print("b\na\nc\n");
    assert_eq!(bench.screen(), "a\nb\na\na\nc\n", "what this world has shown is not expected of it");
    bench.begin(None);
    bench.print("a\nb\na\nc\n");
    assert_eq!(bench.screen(), "a\nb\na\na\nc\n");
}

#[test]
fn lines_of_the_world_before_may_come_late() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print("a\n");
    bench.begin(None);
    bench.print("a\n");
    bench.world = 1;
    bench.print("b\n");
    bench.world = 2;
    bench.print("b\nc\n");
    assert_eq!(bench.screen(), "a\nb\nc\n");
}

#[test]
fn lines_that_come_late_are_not_shown_where_they_were_printed_again_before() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print("a\n");
    bench.begin(None);
    bench.print("a\nb\nc\n");
    bench.world = 1;
    bench.print("b\nold\n");
    bench.print("c");
    bench.print("\n");
    bench.world = 2;
    bench.print("old\nd\n");
    assert_eq!(bench.screen(), "a\nb\nc\nold\nc\nd\n", "one whose beginning was shown comes whole");
    // What this world has printed once hides one line.
    bench.begin(None);
    bench.print("a\nb\nc\nold\nd\ne\n");
    bench.world = 2;
    bench.print("e\ne\n");
    assert_eq!(bench.screen(), "a\nb\nc\nold\nc\nd\ne\ne\n");
}

#[test]
fn lines_that_come_late_and_equal_those_behind_a_newer_version_are_shown() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.mark(1);
    bench.print("a\n");
    bench.begin(Some((1, 1)));
    bench.print("a\nb\n");
    bench.mark(2);
    bench.print("c\n");
    bench.world = 1;
    bench.print("b\nc\n");
    assert_eq!(bench.screen(), "a\nb\nc\nc\n");
}

#[test]
fn lines_that_come_late_and_stand_before_the_restored_version_are_shown_and_hide_nothing() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print("a\n");
    bench.begin(Some((1, 1)));
    bench.print("tick\n");
    bench.world = 1;
    bench.print("tick\nb\n");
    bench.world = 2;
    bench.print("b\n");
    assert_eq!(bench.screen(), "a\ntick\ntick\nb\nb\n");
    // Behind the version it is as ever.
    bench.world = 1;
    bench.mark(1);
    bench.print("tick\nc\n");
    bench.world = 2;
    bench.print("c\n");
    assert_eq!(bench.screen(), "a\ntick\ntick\nb\nb\nc\n");
}

#[test]
fn lines_that_come_two_worlds_late_are_shown() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print("a\n");
    bench.begin(None);
    bench.print("a\nb\n");
    bench.mark(1);
    bench.begin(Some((1, 2)));
    bench.print("c\n");
    bench.world = 1;
    bench.print("c\n");
    assert_eq!(bench.screen(), "a\nb\nc\nc\n");
}

#[test]
fn what_a_process_leaves_of_a_line_is_a_line() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print("one\ntw");
    bench.begin(None);
    bench.print("one\ntwo\nthr");
    assert_eq!(bench.screen(), "one\ntw\ntwo\n", "its end may come");
    bench.begin(None);
    bench.print("one\n");
    bench.print("tw");
    bench.begin(None);
    assert_eq!(bench.screen(), "one\ntw\ntwo\nthr\n", "what is kept back is not lost");
    bench.print("one\ntwo\nthree\nthr\n");
    assert_eq!(bench.screen(), "one\ntw\ntwo\nthr\nthree\n");
}

#[test]
fn the_beginning_of_a_line_is_kept_back_for_a_while() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print("name? x\nrest\n");
    bench.begin(None);
    bench.print("name? ");
    assert_eq!(bench.screen(), "name? x\nrest\n");
    let deadline = bench.once.deadline().unwrap();
    assert_eq!(bench.once.overdue(deadline - std::time::Duration::from_millis(1)), []);
    assert_eq!(bench.once.overdue(deadline), [(0, b"name? ".to_vec())]);
    assert_eq!((bench.once.deadline(), bench.once.overdue(deadline)), (None, vec![]));
    bench.print("x\nrest\nmore");
    assert_eq!(bench.screen(), "name? x\nrest\nx\nmore", "of what was shown in part the rest is shown");
    bench.begin(None);
    bench.print("name? x\nrest\nname? x\nmor");
    assert_eq!(bench.once.finish(NOW()), [(0, b"mor".to_vec())]);
}

#[test]
fn a_last_line_without_an_end_is_one() {
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print("a\ndone");
    bench.begin(None);
    bench.print("a\ndone");
    assert_eq!((bench.screen().as_str(), bench.once.finish(NOW())), ("a\ndone\n", vec![]));
}

#[test]
fn what_is_no_text_is_shown() {
    let long = "x".repeat(LONGEST + 1);
    for odd in ["a\0b\n", long.as_str()] {
        for first in [odd, ""] {
            let mut bench = Bench::default();
            bench.begin(None);
            bench.print("a\nb\nc\n");
            bench.print(first);
            bench.begin(None);
            bench.print("a\n");
            bench.print(&format!("b\n{odd}c\n"));
            bench.begin(None);
            bench.print("a\n");
            // From there on, also in the same piece, all is shown.
            let before = if first.is_empty() { "" } else { "a\nb\n" };
            assert!(bench.screen() == format!("a\nb\nc\n{first}{before}{odd}c\na\n"), "{odd:.5}, {first:.5}");
        }
    }
    let exactly = "x".repeat(LONGEST) + "\n";
    let mut bench = Bench::default();
    bench.begin(None);
    bench.print(&exactly);
    bench.begin(None);
    bench.print(&exactly[..40]);
    bench.print(&exactly[40..]);
    assert_eq!(bench.screen(), exactly);
}

#[test]
fn a_job_s_memory_is_bounded_and_what_is_forgotten_is_shown_again() {
    let mut once = Once { most: 100, ..Once::default() };
    let print = |once: &mut Once, world, rank, lines: std::ops::Range<u32>| {
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        String::from_utf8(once.print((world, rank), text.into_bytes(), NOW())).unwrap().lines().count()
    };
    assert_eq!((print(&mut once, 1, 0, 0..1000), print(&mut once, 1, 1, 0..20)), (1000, 20));
    assert!(once.lines <= 100 && once.lines > 70, "{}", once.lines);
    once.begins(2, None);
    assert_eq!(print(&mut once, 2, 1, 0..20), 0, "the longest is shortened");
    let again = print(&mut once, 2, 0, 0..1000);
    assert!((920..1000).contains(&again), "{again}");
    assert!(once.lines <= 100);
}

/// What a program does. Lines are of few kinds: equal ones, blank ones, ones that differ each time.
#[derive(Debug, Clone)]
enum Act {
    Line(u8),
    Checkpoint,
}

/// A life of the program: how many of its acts it comes to, where its output is cut into pieces, what it takes back.
#[derive(Debug, Clone)]
struct Life {
    acts: usize,
    fragment: bool,
    pieces: Vec<usize>,
    restore: Option<usize>,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    proptest::collection::vec(prop_oneof![6 => (0u8..9).prop_map(Act::Line), 1 => Just(Act::Checkpoint)], 1..60)
}

fn lives() -> impl Strategy<Value = Vec<Life>> {
    let life = (0usize..60, any::<bool>(), proptest::collection::vec(1usize..9, 1..8), proptest::option::of(0usize..4));
    let life = life.prop_map(|(acts, fragment, pieces, restore)| Life { acts, fragment, pieces, restore });
    proptest::collection::vec(life, 1..5)
}

/// What an act prints in a world; kinds beyond the equal ones are stamped.
fn line(act: usize, kind: u8, world: World) -> String {
    match kind {
        0 => String::new(),
        1 => "same".into(),
        2 => format!("\r{act}"),
        3 => format!("at {world}"),
        4 => format!("{act} took {world}"),
        _ => format!("step {act}"),
    }
}

/// Who has seen everything. Lines as they are, and the rule as it is written, by the simplest means.
#[derive(Default)]
struct Witness {
    /// What has been shown, in the order of the program.
    seen: Vec<String>,
    /// How many of it had been seen when a version was taken.
    marks: Vec<(Commit, usize)>,
    list: Vec<String>,
    highest: Version,
    newest: Version,
}

impl Witness {
    fn begin(&mut self, restored: Option<Commit>) {
        self.seen.append(&mut self.list);
        let mark = restored.map_or(0, |commit| self.marks.iter().find(|mark| mark.0 == commit).unwrap().1);
        self.list = self.seen.split_off(mark);
        self.marks.retain(|of| of.1 <= mark);
        self.highest = self.highest.max(self.newest);
    }

    /// Whether it is shown.
    fn line(&mut self, line: String) -> bool {
        let known = self.list.iter().position(|other| *other == line);
        match known {
            Some(at) => self.seen.extend(self.list.drain(..=at)),
            None => self.seen.push(line),
        }
        known.is_none()
    }

    fn mark(&mut self, commit: Commit) {
        if commit.0 > self.highest {
            self.seen.append(&mut self.list);
        }
        self.newest = self.newest.max(commit.0);
        self.marks.push((commit, self.seen.len()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever programs print, and wherever they die: the rule is kept, and nothing that was not seen is hidden.
    #[test]
    fn the_rule_is_kept(acts in acts(), lives in lives()) {
        let (mut bench, mut witness) = (Bench::default(), Witness::default());
        let mut expected = String::new();
        // Versions, the act behind each, and the epoch that took it.
        let mut versions: Vec<(Commit, usize)> = Vec::new();
        for life in lives {
            let from = life.restore.and_then(|back| versions.iter().rev().nth(back).copied());
            let (restored, mut at) = from.map_or((None, 0), |(commit, act)| (Some(commit), act));
            versions.retain(|(commit, _)| restored.is_some_and(|restored| *commit <= restored));
            bench.begin(restored);
            witness.begin(restored);
            let epoch = bench.world;
            let mut sizes = life.pieces.iter().cycle();
            let (mut waiting, mut shown_now) = (String::new(), Vec::new());
            for (act, what) in acts.iter().enumerate().skip(at).take(life.acts) {
                at = act + 1;
                match what {
                    Act::Line(kind) => {
                        let line = line(act, *kind, epoch);
                        waiting.push_str(&line);
                        waiting.push('\n');
                        if witness.line(line.clone()) {
                            expected.push_str(&line);
                            expected.push('\n');
                            shown_now.push(line);
                        }
                    }
                    Act::Checkpoint => {
                        bench.print(&std::mem::take(&mut waiting));
                        let version = act as Version + 1;
                        bench.mark(version);
                        witness.mark((version, epoch));
                        versions.push(((version, epoch), at));
                    }
                }
                while let Some(size) = sizes.next().copied().filter(|size| waiting.len() > 3 * *size) {
                    let rest = waiting.split_off(size);
                    bench.print(&std::mem::replace(&mut waiting, rest));
                }
            }
            if life.fragment && at < acts.len() {
                waiting.push_str("broken");
            }
            bench.print(&waiting);
            if life.fragment && at < acts.len() {
                // It dies here: whoever reads its pipe ends the line.
                bench.print("\n");
                if witness.line("broken".into()) {
                    expected.push_str("broken\n");
                }
            }
            prop_assert_eq!(bench.screen(), expected.as_str());
        }
    }

    /// A program that prints the same each time is seen once, whatever happens to it.
    #[test]
    fn a_program_that_prints_the_same_is_seen_once(kinds in proptest::collection::vec(0u8..3, 1..60), lives in lives()) {
        let text = |act: usize, kind: u8| line(act, kind, 0) + "\n";
        let (mut bench, mut most) = (Bench::default(), 0);
        for life in lives {
            bench.begin(None);
            for (act, kind) in kinds.iter().enumerate().take(life.acts) {
                bench.print(&text(act, *kind));
                most = most.max(act + 1);
            }
            let once: String = kinds.iter().enumerate().take(most).map(|(act, kind)| text(act, *kind)).collect();
            prop_assert_eq!(bench.screen(), once);
        }
    }
}
