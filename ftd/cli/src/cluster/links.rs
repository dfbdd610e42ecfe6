//! What goes over the links to a job's parts, whose near ends are here, and what becomes of nodes whose links end.

use super::{Above, Node};
use ft_wire::part::{Carried, Mark, ToJobs};
use ftd_core::policy::Mode;

/// So many parts are told at a time which nodes there are.
const AT_A_TIME: usize = 64;
/// What becomes of a node whose link says nothing more, and has not said its last word.
const BROKE: &str = "the link to the part of the job there broke";

impl Above<'_> {
    /// A node from which something may come still.
    pub(super) fn open(&mut self, number: u32) -> Option<&mut Node> {
        self.nodes.get_mut(number as usize).filter(|node| !node.over)
    }

    /// Sends what may be sent over a node's link now.
    pub(super) fn send_over(&mut self, number: u32) {
        // One that has not started hears all that follows with that.
        if self.open(number).is_some_and(|node| !node.link.waits()) {
            self.send_words(number);
        }
    }

    fn send_words(&mut self, number: u32) {
        while let Some(word) = self.open(number).and_then(|node| node.link.next_word()) {
            self.say(&ToJobs::Carry { node: number, word });
        }
    }

    /// Tells the next parts that they may start, and which nodes there are: that is long where there are many, and only so many hear it at a time.
    pub(super) fn start_others(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let is_told = |node: &&Node| !node.over && !node.link.waits() && !node.link.is_free();
        let told = self.nodes.iter().filter(is_told).count();
        for _ in told..AT_A_TIME {
            let Some(number) = self.waiting.pop_front() else { return };
            self.send_words(number);
        }
    }

    /// What comes over a node's link.
    pub(super) fn come_over(&mut self, number: u32, word: Carried) {
        let last = word == Carried::End;
        match self.open(number) {
            Some(node) => {
                node.link.hear(word);
                self.take_of(number);
                self.send_over(number);
                if self.open(number).is_none_or(|node| node.link.is_free()) {
                    self.start_others();
                }
            }
            // The last word of its part was taken before.
            None if last => self.say(&ToJobs::Carry { node: number, word: Carried::End }),
            None => {}
        }
    }

    /// Takes what has come over all links, where there is room again. What nobody reads here is not taken from those who write it.
    pub(super) fn take(&mut self) {
        if std::mem::replace(&mut self.full, !self.output.has_room()) && !self.full {
            for number in 0..self.nodes.len() as u32 {
                self.take_of(number);
                self.send_over(number);
            }
        }
    }

    /// Takes what has come over a node's link, as long as there is room.
    pub(super) fn take_of(&mut self, number: u32) {
        while self.output.has_room()
            && let Some(node) = self.open(number)
        {
            match node.link.next_said() {
                Ok(Some(word)) => self.part_says(number, word),
                Ok(None) if node.link.has_ended() => {
                    let closed = || format!("{BROKE} (the connection was closed): what ran there is ended");
                    let why = node.why.take().unwrap_or_else(closed);
                    self.hang_up(number, &why);
                }
                Ok(None) => return,
                Err(error) => self.hang_up(number, &format!("{BROKE} ({error}): what ran there is ended")),
            }
        }
        self.full |= !self.output.has_room();
    }

    /// There is another connection for a node's link.
    pub(super) fn mark(&mut self, number: u32, turn: u32) {
        let answer = match self.open(number) {
            Some(node) => ToJobs::Mark { node: number, turn, mark: node.link.mark() },
            None => ToJobs::Carry { node: number, word: Carried::End },
        };
        self.say(&answer);
    }

    /// What of a node's link did not arrive is sent again.
    pub(super) fn agree(&mut self, number: u32, mark: Mark) {
        match self.open(number).map(|node| node.link.agree(mark)) {
            Some(Ok(again)) => {
                again.into_iter().for_each(|word| self.say(&ToJobs::Carry { node: number, word }));
                self.send_over(number);
                self.start_others();
            }
            Some(Err(error)) => self.hang_up(number, &format!("{BROKE} ({error}): what ran there is ended")),
            None => {}
        }
    }

    /// Nothing more is said over a node's link, or heard.
    pub(super) fn hang_up(&mut self, number: u32, why: &str) {
        self.say(&ToJobs::Carry { node: number, word: Carried::End });
        self.lose(number, why);
    }

    /// Nothing more comes over a node's link, and the last word has not come.
    pub(super) fn lose(&mut self, number: u32, why: &str) {
        let Some(name) = self.end_of(number) else { return };
        self.look_for(number);
        self.breaks(1, format!("node {name}: {why}"));
        self.start_others();
    }

    /// A node that is lost may be there again.
    pub(super) fn look_for(&mut self, number: u32) {
        let survives = !self.ends && self.options.mode != Mode::None;
        let node = self.nodes.get_mut(number as usize).filter(|node| survives && node.lost.is_none());
        if node.map(|node| node.lost = Some(true)).is_some() {
            self.say(&ToJobs::Lost(number));
        }
    }
}
