//! What the part on a node hears from the launcher above all parts.

use super::Launcher;
use crate::signals::Meaning;
use ft_sys::job_time;
use ft_wire::launcher::ToAgent;
use ft_wire::part::{FromPart, Order, SILENT};
use nix::libc;
use std::time::Instant;

impl Launcher {
    /// Does what is asked for. When nobody asks any more, the job ends here: nobody hears of it, or could end it.
    pub(super) fn follow_orders(&mut self) {
        while let Some(part) = self.part.as_mut().filter(|part| part.is_open()) {
            match part.next() {
                Ok(Some(order)) => self.follow(order),
                Ok(None) => return,
                Err(error) => {
                    part.close();
                    if self.ending.is_none() {
                        self.give_up(1, &format!("the launcher is gone: {error}"));
                    }
                    return;
                }
            }
        }
    }

    /// One that stands still is as good as gone: nobody would hear of the job, or could end it.
    pub(super) fn miss_launcher(&mut self, now: Instant, in_time: bool) {
        // What has come may not have been read.
        self.follow_orders();
        if let Some(part) = &mut self.part
            && part.is_silent(now, in_time)
        {
            part.hang_up();
            let sentence =
                format!("nothing has come from the launcher, or from the ftd between, for {} s", SILENT.as_secs());
            self.give_up(1, &sentence);
        }
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::Signal(libc::SIGTSTP) => {
                self.tell(&ToAgent::Signal(libc::SIGTSTP));
                job_time::stop();
            }
            Order::Signal(libc::SIGCONT) => {
                job_time::go_on();
                self.tell(&ToAgent::Signal(libc::SIGCONT));
            }
            Order::Signal(signal) => self.signal(Meaning::Forward(signal)),
            Order::Cancel(signal) if self.ending.is_none() => self.cancel(signal, job_time::now()),
            Order::Kill(sentence) if self.ending.is_none() => self.give_up(1, &sentence),
            Order::Cancel(_) | Order::Kill(_) => {}
            Order::Ask => self.output.send(&FromPart::Here),
            Order::Joins(node) => {
                // The next agent hears of it with the job.
                self.spec.cluster.iter_mut().for_each(|cluster| cluster.nodes.push((*node).clone()));
                self.tell(&ToAgent::Joins(node));
            }
            Order::Input(bytes) => {
                self.input.feed(Some(&bytes));
                self.tell_input_grew();
            }
            Order::InputEnd => {
                self.input.feed(None);
                self.tell_input_grew();
            }
            Order::Pulse => {}
            Order::Announced(epoch) => {
                self.reported = self.reported.max(epoch);
                self.output.announced();
            }
        }
    }

    /// Ranks take their input without a word.
    pub(super) fn tell_room(&mut self) {
        if self.part.is_some()
            && self.ending.is_none()
            && let Some((world, bytes)) = self.input.room()
        {
            self.output.send(&FromPart::Room { world, bytes });
        }
    }
}
