//! Dates and times as people have them here.

use std::ffi::CStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// `2026-11-25 14:22:38`, by the time zone of this process.
pub fn local(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seconds = libc::time_t::try_from(seconds).unwrap_or(libc::time_t::MAX);
    // SAFETY: an all-zero tm is a valid value of the type.
    let mut broken: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call; tzset, which localtime_r need not call, only reads the environment.
    if unsafe { libc::localtime_r(&seconds, &mut broken) }.is_null() {
        return format!("{seconds} s after 1970");
    }
    let mut text = [0u8; 32];
    // SAFETY: the buffer is as long as is said, and the format ends with a NUL.
    let length =
        unsafe { libc::strftime(text.as_mut_ptr().cast(), text.len(), c"%Y-%m-%d %H:%M:%S".as_ptr(), &broken) };
    CStr::from_bytes_until_nul(&text[..=length.min(text.len() - 1)])
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_time_has_a_date() {
        let noon = local(UNIX_EPOCH + Duration::from_secs(1_795_608_000));
        assert!(noon.starts_with("2026-11-2") && noon.ends_with(":00:00") || noon.ends_with(":30:00"), "{noon}");
    }
}
