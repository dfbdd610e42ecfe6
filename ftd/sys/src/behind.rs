//! Work that can wait, on a thread that others wait for at other times.

use crate::slice::{self, SchedAttr};
use std::marker::PhantomData;

/// For as long as it exists, the calling thread runs behind those that wait for it: it never interrupts another thread when
/// it wakes up, and has the ordinary time slice. Then it is what it was: threads of a pool do something else next.
#[derive(Debug)]
#[must_use = "the thread is back in its place when this is dropped"]
pub struct Behind {
    before: Option<SchedAttr>,
    /// It belongs to the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl Behind {
    /// From now on.
    pub fn begin() -> Self {
        let before = slice::of_this_thread();
        if let Some(before) = &before {
            let mut behind = *before;
            behind.policy = libc::SCHED_BATCH as u32;
            behind.runtime = 0;
            slice::apply(&behind);
        }
        Behind { before, _thread: PhantomData }
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            slice::apply(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_back_in_its_place_afterwards() {
        let is = || slice::of_this_thread().map(|attr| (attr.policy as i32, attr.runtime)).unwrap();
        slice::shorten();
        let before = is();
        assert_eq!(before.0, libc::SCHED_OTHER);
        {
            let _behind = Behind::begin();
            assert_eq!(is().0, libc::SCHED_BATCH);
            // A kernel that knows no slices says 0 throughout.
            assert!(is().1 != before.1 || before.1 == 0, "{:?}", is());
        }
        assert_eq!(is(), before);
    }
}
