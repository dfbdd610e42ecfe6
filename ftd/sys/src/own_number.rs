//! A variable with the number of the process that has it: nobody knows that before there is the process, so its value is the process's own to write, between
//! `fork` and `exec`.

use std::ffi::{CStr, c_char};

/// Bytes that the number of a process takes at most, with a zero behind it.
const ROOM: usize = 11;

/// The variable.
#[derive(Debug)]
pub(crate) struct OwnNumber {
    /// `NAME=`, and room.
    text: Vec<u8>,
    /// Length of the first part.
    name: usize,
}

impl OwnNumber {
    /// Of that name.
    pub(crate) fn new(name: &str) -> OwnNumber {
        let name = format!("{name}=").into_bytes();
        let len = name.len();
        OwnNumber { text: [name, vec![0; ROOM]].concat(), name: len }
    }

    /// Puts it into the null-terminated list of an environment's strings, in the place of those of its name. Where [`write`] is to write.
    pub(crate) fn stand_in(&mut self, env: &mut Vec<*const c_char>) -> *mut u8 {
        let name = &self.text[..self.name];
        let is_other = |entry: &*const c_char| {
            // SAFETY: what is no null pointer is a string that outlives the list.
            entry.is_null() || !unsafe { CStr::from_ptr(*entry) }.to_bytes().starts_with(name)
        };
        env.retain(is_other);
        let text = self.text.as_mut_ptr();
        env.insert(env.len() - 1, text.cast_const().cast());
        text.wrapping_add(self.name)
    }
}

/// Writes a number in decimal digits. Safe between `fork` and `exec`.
///
/// # Safety
/// `to` is what [`OwnNumber::stand_in`] has returned, and nobody else writes or reads there now.
pub(crate) unsafe fn write(number: i32, to: *mut u8) {
    let (mut rest, mut digits) = (number.unsigned_abs(), 1);
    while rest >= 10 {
        (rest, digits) = (rest / 10, digits + 1);
    }
    let mut rest = number.unsigned_abs();
    for at in (0..digits).rev() {
        // SAFETY: a number has ten digits at most, and the byte behind them is a zero.
        unsafe { to.add(at).write(b'0' + (rest % 10) as u8) };
        rest /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spawn::pointers;
    use std::ffi::CString;

    #[test]
    fn a_number_stands_in_the_place_of_another() {
        for (number, text) in [(7, "N=7"), (10, "N=10"), (4_194_304, "N=4194304"), (i32::MAX, "N=2147483647")] {
            let strings = ["A=1", "N=5", "NO=6", "N="].map(|text| CString::new(text).unwrap());
            let (mut env, mut own) = (pointers(&strings), OwnNumber::new("N"));
            let place = own.stand_in(&mut env);
            // SAFETY: it is that place.
            unsafe { write(number, place) };
            assert!(env.pop().is_some_and(|last| last.is_null()));
            // SAFETY: those are strings.
            let texts: Vec<&str> = env.iter().map(|text| unsafe { CStr::from_ptr(*text) }.to_str().unwrap()).collect();
            assert_eq!(texts, ["A=1", "NO=6", text]);
        }
    }
}
