//! Whether a user may have processes here just now: what a login asks, for those who do not log in.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::time::{SystemTime, UNIX_EPOCH};

/// While one of them is there nobody but root is let in; it says why.
const CLOSED: [&str; 2] = ["/run/nologin", "/etc/nologin"];
/// A site that wants to say who may start jobs here says it in this file.
const SERVICE: &str = "/etc/pam.d/ftd";
const PAM: &CStr = c"libpam.so.0";
/// `PAM_SILENT`: its modules speak to nobody.
const SILENT: c_int = 0x8000;
/// `PAM_CONV_ERR`.
const NOBODY_TO_ASK: c_int = 19;
const SECONDS_OF_A_DAY: u64 = 86_400;

/// Why this user may not; `None` when it may. PAM is another library's affair, so it is to be asked in a process of its own, as root.
pub fn refusal(name: &str, uid: u32) -> Option<String> {
    let closed = CLOSED.into_iter().find(|path| uid != 0 && Path::new(path).exists());
    if let Some(path) = closed {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        return Some(format!(
            "users are not let in there now ({path}{}{text})",
            if text.is_empty() { "" } else { ": " }
        ));
    }
    let account = CString::new(name).ok()?;
    let today = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / SECONDS_OF_A_DAY);
    if expiry(&account).is_some_and(|day| day <= today) {
        return Some(format!("the account of {name} has expired there"));
    }
    if !Path::new(SERVICE).exists() {
        return None;
    }
    match ask_pam(&account) {
        Ok(None) => None,
        Ok(Some(why)) => Some(format!("{name} may not start jobs there ({SERVICE}: {why})")),
        Err(why) => Some(format!("whether {name} may start jobs there cannot be found out ({SERVICE}: {why})")),
    }
}

/// The day from which on there is no such account any more.
fn expiry(name: &CStr) -> Option<u64> {
    // SAFETY: a string that lives, and an entry that stays until the next call; this process has one thread.
    let day = unsafe { libc::getspnam(name.as_ptr()).as_ref() }?.sp_expire;
    u64::try_from(day).ok().filter(|day| *day > 0)
}

type Talk = extern "C" fn(c_int, *mut *const c_void, *mut *mut c_void, *mut c_void) -> c_int;

/// `struct pam_conv`.
#[repr(C)]
struct Conversation {
    talk: Talk,
    with: *mut c_void,
}

extern "C" fn nobody(_: c_int, _: *mut *const c_void, _: *mut *mut c_void, _: *mut c_void) -> c_int {
    NOBODY_TO_ASK
}

/// What PAM says to the account: why not, if anything. An error when it cannot be asked.
fn ask_pam(name: &CStr) -> Result<Option<String>, String> {
    type Start = unsafe extern "C" fn(*const c_char, *const c_char, *const Conversation, *mut *mut c_void) -> c_int;
    type Call = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
    type Words = unsafe extern "C" fn(*mut c_void, c_int) -> *const c_char;
    // SAFETY: a library of the system's, which stays loaded.
    let library = unsafe { libc::dlopen(PAM.as_ptr(), libc::RTLD_NOW) };
    let find = |symbol: &CStr| {
        // SAFETY: a handle that was just given, and a name.
        let found = if library.is_null() { ptr::null_mut() } else { unsafe { libc::dlsym(library, symbol.as_ptr()) } };
        (!found.is_null()).then_some(found).ok_or_else(|| format!("{} is not to be had", PAM.to_string_lossy()))
    };
    let (start, account, words, end) =
        (find(c"pam_start")?, find(c"pam_acct_mgmt")?, find(c"pam_strerror")?, find(c"pam_end")?);
    // SAFETY: these are the types that PAM's manual gives these functions; all that is passed lives until `end`.
    unsafe {
        let start = std::mem::transmute::<*mut c_void, Start>(start);
        let account = std::mem::transmute::<*mut c_void, Call>(account);
        let end = std::mem::transmute::<*mut c_void, Call>(end);
        let words = std::mem::transmute::<*mut c_void, Words>(words);
        let (talk, mut handle) = (Conversation { talk: nobody, with: ptr::null_mut() }, ptr::null_mut());
        let said = start(c"ftd".as_ptr(), name.as_ptr(), &raw const talk, &raw mut handle);
        if said != 0 || handle.is_null() {
            return Err(format!("PAM does not begin, with {said}"));
        }
        let said = account(handle, SILENT);
        let text = words(handle, said);
        let why = if text.is_null() { said.to_string() } else { CStr::from_ptr(text).to_string_lossy().into_owned() };
        end(handle, said);
        Ok((said != 0).then_some(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pam_is_asked_where_it_is() {
        // SAFETY: asks whether it can be loaded.
        let is_there = unsafe { !libc::dlopen(PAM.as_ptr(), libc::RTLD_NOW).is_null() };
        let asked = ask_pam(c"root");
        assert_eq!(asked.is_ok(), is_there, "{asked:?}");
    }
}
