//! One end of a link between a launcher and a part, as its holder counts it: what may be under way, what has come, and what has to be sent again
//! when the connection below it is another one. No I/O: words go in and come out.

use crate::part::{Carried, MAX_SAID, Mark};
use crate::unpassed::Unpassed;
use crate::{FRAME_HEADER, FrameBuffer, FrameError, decode};
use serde::de::DeserializeOwned;

/// Why nothing more can be heard over a link.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkEndError {
    /// What came is no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The two ends do not agree on what was sent.
    #[error("the other end has passed on {passed} bytes and received {came}, which cannot be")]
    Marks {
        /// What it says that it has passed on.
        passed: u64,
        /// What it says has come.
        came: u64,
    },
}

/// See the module.
#[derive(Debug)]
pub struct LinkEnd {
    window: usize,
    /// So much more may be under way from here.
    credit: usize,
    sent: Unpassed,
    /// So much has come in all …
    came: u64,
    /// … of which so much was taken in whole messages …
    taken: u64,
    /// … and so much is passed on. What is the beginning of a message is no reason to hold up the rest of it.
    passed: u64,
    heard: FrameBuffer,
    /// A frame, and how much of it was sent.
    frame: Vec<u8>,
    at: usize,
    /// Another connection is there, on which the ends have not agreed yet.
    agrees: bool,
    /// Nothing more comes.
    ended: bool,
}

impl LinkEnd {
    /// One with a window of so many bytes, over which so many have come, and were passed on.
    pub fn new(window: u32, came: u64) -> LinkEnd {
        let window = (window as usize).max(1);
        let mut heard = FrameBuffer::default();
        heard.limit(MAX_SAID);
        LinkEnd {
            window,
            credit: window,
            sent: Unpassed::default(),
            came,
            taken: came,
            passed: came,
            heard,
            frame: Vec::new(),
            at: 0,
            agrees: false,
            ended: false,
        }
    }

    /// Whether the next frame may be given.
    pub fn is_free(&self) -> bool {
        self.at == self.frame.len()
    }

    /// This is to be said next: a whole frame. Only where it [`is_free`](Self::is_free).
    pub fn say(&mut self, frame: Vec<u8>) {
        debug_assert!(self.is_free());
        (self.frame, self.at) = (frame, 0);
    }

    /// What is to be sent now, if anything is.
    pub fn next_word(&mut self) -> Option<Carried> {
        if self.agrees {
            return None;
        }
        let untold = self.passed - self.sent.taken();
        let word = if untold >= self.window as u64 / 4 {
            Carried::Taken(u32::try_from(untold).unwrap_or(u32::MAX))
        } else {
            let left = &self.frame[self.at..];
            // A frame that goes at once leaves nobody with half of one who then hears nothing for long.
            let piece = left.len().min(self.window / 2).max(1);
            if left.is_empty() || piece > self.credit {
                return None;
            }
            self.credit -= piece;
            self.at += piece;
            Carried::Bytes(left[..piece].to_vec())
        };
        self.sent.note(&word);
        Some(word)
    }

    /// What comes over the link. Words between those who carry are nothing here.
    pub fn hear(&mut self, word: Carried) {
        match word {
            Carried::Bytes(bytes) => {
                self.came += bytes.len() as u64;
                self.heard.push(&bytes);
            }
            Carried::Taken(count) => self.passed_on(u64::from(count)),
            Carried::End => self.ended = true,
            Carried::Ask | Carried::Here => {}
        }
    }

    /// The next message, if one is there. What is not taken lies here, no more than the window.
    ///
    /// # Errors
    /// [`LinkEndError::Frame`].
    pub fn next_said<M: DeserializeOwned>(&mut self) -> Result<Option<M>, LinkEndError> {
        match self.heard.next_frame()? {
            Some((body, _)) => {
                self.taken += (FRAME_HEADER + body.len()) as u64;
                self.passed = self.passed.max(self.taken);
                Ok(Some(decode(&body)?))
            }
            None => {
                self.passed = self.came;
                Ok(None)
            }
        }
    }

    /// Nothing more comes from there.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// There is another connection: how far this end is. Nothing is sent before the ends [`agree`](Self::agree).
    pub fn mark(&mut self) -> Mark {
        self.agrees = true;
        Mark { came: self.came, passed: self.sent.taken() }
    }

    /// So far is the other end. Returns what is to be sent again.
    ///
    /// # Errors
    /// [`LinkEndError::Marks`]: it cannot be so far.
    pub fn agree(&mut self, theirs: Mark) -> Result<Vec<Carried>, LinkEndError> {
        let Mark { came, passed } = theirs;
        let more = self.sent.go_back_to(theirs).ok_or(LinkEndError::Marks { passed, came })?;
        self.gains(more);
        self.agrees = false;
        Ok(self.sent.again())
    }

    fn passed_on(&mut self, bytes: u64) {
        self.sent.passed_on(bytes);
        self.gains(bytes);
    }

    fn gains(&mut self, bytes: u64) {
        let most = self.window.saturating_sub(self.credit);
        self.credit += usize::try_from(bytes).unwrap_or(most).min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode;
    use crate::part::{FromPart, Order};

    const WINDOW: u32 = 16 << 10;

    /// All that may be sent now.
    fn words(end: &mut LinkEnd) -> Vec<Carried> {
        std::iter::from_fn(|| end.next_word()).collect()
    }

    #[test]
    fn no_more_is_under_way_than_the_window_and_all_of_it_arrives() {
        let (mut one, mut other) = (LinkEnd::new(WINDOW, 0), LinkEnd::new(WINDOW, 0));
        let said: Vec<FromPart> = (0..200).map(|n| FromPart::Line("x".repeat(n * 10))).collect();
        let (mut given, mut heard) = (said.iter(), Vec::new());
        let mut under_way = Vec::new();
        loop {
            // Nobody takes anything for as long as there is room.
            while one.is_free() {
                let Some(next) = given.next() else { break };
                one.say(encode(next, 0).unwrap());
                under_way.extend(words(&mut one));
            }
            under_way.extend(words(&mut one));
            let bytes: usize =
                under_way.iter().map(|word| if let Carried::Bytes(bytes) = word { bytes.len() } else { 0 }).sum();
            assert!(bytes <= WINDOW as usize, "{bytes} bytes are under way");
            if under_way.is_empty() {
                break;
            }
            under_way.drain(..).for_each(|word| other.hear(word));
            while let Some(word) = other.next_said::<FromPart>().unwrap() {
                heard.push(word);
            }
            words(&mut other).into_iter().for_each(|word| one.hear(word));
        }
        assert!(heard == said && given.next().is_none());
    }

    #[test]
    fn what_is_not_taken_holds_up_the_other_end_and_a_long_message_does_not() {
        let (mut one, mut other) = (LinkEnd::new(WINDOW, 0), LinkEnd::new(WINDOW, 0));
        let long = FromPart::Line("x".repeat(100 << 10));
        one.say(encode(&long, 0).unwrap());
        let mut heard = None;
        for _ in 0..100 {
            words(&mut one).into_iter().for_each(|word| other.hear(word));
            heard = heard.or(other.next_said::<FromPart>().unwrap());
            words(&mut other).into_iter().for_each(|word| one.hear(word));
        }
        assert!(heard == Some(long) && one.is_free());
        let mut said = 0;
        while one.is_free() && said < 1000 {
            one.say(encode(&FromPart::Line("y".repeat(1000)), 0).unwrap());
            words(&mut one).into_iter().for_each(|word| other.hear(word));
            words(&mut other).into_iter().for_each(|word| one.hear(word));
            said += 1;
        }
        assert!((14..=17).contains(&said), "{said} messages that nobody takes are under way");
        let count = std::iter::from_fn(|| other.next_said::<FromPart>().unwrap()).count();
        words(&mut other).into_iter().for_each(|word| one.hear(word));
        words(&mut one).into_iter().for_each(|word| other.hear(word));
        assert!(count + 1 == said && one.is_free() && other.next_said::<FromPart>().unwrap().is_some());
    }

    #[test]
    fn over_another_connection_nothing_is_lost_or_said_twice() {
        let (mut one, mut other) = (LinkEnd::new(WINDOW, 0), LinkEnd::new(WINDOW, 0));
        let mut heard = Vec::new();
        for turn in 0..300 {
            let word = Order::Input(vec![turn as u8; turn * 20]);
            one.say(encode(&word, 0).unwrap());
            for (number, word) in words(&mut one).into_iter().enumerate() {
                // Some of it is lost with its connection, also in the middle of a frame.
                if (turn + number) % 3 != 0 {
                    other.hear(word);
                } else {
                    break;
                }
            }
            let (from_one, from_other) = (one.mark(), other.mark());
            assert!(one.next_word().is_none() && other.next_word().is_none(), "they have not agreed");
            for word in one.agree(from_other).unwrap() {
                other.hear(word);
            }
            other.agree(from_one).unwrap().into_iter().for_each(|word| one.hear(word));
            words(&mut one).into_iter().for_each(|word| other.hear(word));
            while let Some(word) = other.next_said::<Order>().unwrap() {
                heard.push(word);
            }
            words(&mut other).into_iter().for_each(|word| one.hear(word));
            assert!(one.is_free());
        }
        let all: Vec<Order> = (0..300).map(|turn| Order::Input(vec![turn as u8; turn * 20])).collect();
        assert!(heard == all);
    }

    #[test]
    fn what_came_before_it_was_held_here_counts_and_marks_that_cannot_be_are_refused() {
        let mut end = LinkEnd::new(WINDOW, 5000);
        assert_eq!(words(&mut end), [Carried::Taken(5000)]);
        assert_eq!(end.mark(), Mark { came: 5000, passed: 5000 });
        let theirs = Mark { came: 1, passed: 0 };
        assert_eq!(end.agree(theirs), Err(LinkEndError::Marks { passed: 0, came: 1 }));
        end.hear(Carried::End);
        assert!(end.has_ended());
    }
}
