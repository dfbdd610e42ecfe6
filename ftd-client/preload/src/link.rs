//! The connection to the agent and what comes over it.

use crate::native::{library_version, object_of};
use crate::{above, create, mark, page, promptly, settings};
use ft_sys::channel::{Channel, ChannelError};
use ft_wire::rank::{ToAgent, ToRank};
use ft_wire::{Flavour, Rank, Role, World};
use std::ffi::{CString, c_void};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest wait for the agent while joining. An agent that is being started again answers within a second; if it does not
/// come back at all, the shepherd ends this process.
const JOIN: Duration = Duration::from_secs(60);
/// Longest wait for the agent's word on an abort; normally it ends this process instead of answering.
const ABORT: Duration = Duration::from_secs(5);

struct Link {
    channel: Channel,
    /// Device and inode of the socket: programs that close descriptors they do not know may have put a file there.
    identity: (u64, u64),
}

static LINK: Mutex<Option<Link>> = Mutex::new(None);

/// Ends the process with one sentence.
pub(crate) fn refuse(text: &str) -> ! {
    let rank = rank().map_or_else(|| "?".into(), |rank| rank.to_string());
    // There is nobody to tell that stderr is closed.
    let _ = std::io::stderr().write_all(format!("ftd: rank {rank}: {text}\n").as_bytes());
    mark::_exit(1)
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    text(name)?.parse().ok()
}

/// The rank that the environment tells.
pub(crate) fn rank() -> Option<Rank> {
    number("FT_RANK")
}

/// Whether this process belongs to a job: it has joined one, or the environment says so.
pub(crate) fn is_wanted() -> bool {
    page::is_owner() || std::env::var_os("FT_SOCKET").is_some_and(|socket| !socket.is_empty())
}

/// Ends the process when it stands below a shepherd and nothing says where it belongs: its MPI would start alone.
pub(crate) fn refuse_astray() {
    if let Some(socket) = above::socket() {
        astray(Some(&socket), "FT_SOCKET is not set".into());
    }
}

fn astray(socket: Option<&Path>, why: String) -> ! {
    ft_sys::standard::occupy();
    have_the_job_ended(socket, &ToAgent::Astray { why: why.clone() });
    refuse(&format!("{why}: this process would be a job of its own"))
}

/// It is no fault of the program's that it has no MPI, and so its end is not to count as the program's own.
fn unable(why: String) -> ! {
    let socket = std::env::var_os("FT_SOCKET");
    have_the_job_ended(socket.as_deref().map(Path::new), &ToAgent::Unable { why: why.clone() });
    refuse(&why)
}

/// Has the agent end the job, whatever a wrapper makes of this process's end.
fn have_the_job_ended(socket: Option<&Path>, why: &ToAgent) {
    if let Some(mut channel) = socket.and_then(|socket| Channel::dial(socket, Role::Rank, ABORT).ok())
        && channel.send(why, &[]).is_ok()
    {
        // Normally the agent ends this process instead of answering.
        let _ = channel.receive::<ToRank>(Some(ABORT));
    }
}

/// The family of the loaded MPI: what the library says of itself, else what `--ft-mpi` says. Served as another family's it would
/// be a job of its own.
fn flavour(library: &str) -> Flavour {
    let known = [
        ("Open MPI", Flavour::OpenMpi),
        ("MPICH", Flavour::Mpich),
        ("Intel(R) MPI", Flavour::Mpich),
        ("MVAPICH", Flavour::Mpich),
    ];
    let told = text("FT_MPI");
    match (known.iter().find(|(name, _)| library.contains(name)), told.as_deref()) {
        (Some((_, flavour)), _) => *flavour,
        (None, Some("openmpi")) => Flavour::OpenMpi,
        (None, Some("mpich")) => Flavour::Mpich,
        (None, _) => unable(format!(
            "the loaded MPI library (\"{}\") is of an unknown kind: say --ft-mpi=openmpi or --ft-mpi=mpich if it speaks like one of them",
            library.split_whitespace().collect::<Vec<_>>().join(" ")
        )),
    }
}

/// Joins the job and makes the environment what the loaded MPI wants. `init` is the native `MPI_Init`.
pub(crate) fn join(init: *const c_void, session: bool) {
    // Before anything is opened, by the MPI as well.
    ft_sys::standard::occupy();
    let library = library_version().unwrap_or_default();
    let flavour = flavour(&library);
    let Some(socket) = std::env::var_os("FT_SOCKET") else { return };
    let (Some(world), Some(rank)) = (number::<World>("FT_WORLD"), rank()) else {
        astray(above::socket().as_deref(), "FT_SOCKET is set, but FT_WORLD and FT_RANK are not set to numbers".into());
    };
    let mut channel = Channel::dial(Path::new(&socket), Role::Rank, JOIN).unwrap_or_else(|error| {
        let true_one = above::socket().filter(|above| above.as_os_str() != socket);
        astray(true_one.as_deref(), format!("cannot reach the agent of this job at {}: {error}", socket.display()))
    });
    let hello = ToAgent::Hello { world, rank, pid: page::pid() as i32, flavour, library, session };
    let (answer, descriptors) =
        channel.send(&hello, &[]).and_then(|()| channel.receive::<ToRank>(Some(JOIN))).unwrap_or_else(|error| {
            let why = format!("the agent of this job did not let the process join: {error}");
            // Of one that has died the shepherd knows, and ends this process.
            if matches!(error, ChannelError::TimedOut(_)) { unable(why) } else { refuse(&why) }
        });
    let (env, pmi_fd) = match answer {
        ToRank::Welcome { env, pmi_fd } => (env, pmi_fd),
        ToRank::Refused { reason } => refuse(&reason),
        ToRank::Proceed => unable("the agent of this job gave no proper answer to the process that joined".into()),
    };
    let mut descriptors = descriptors.into_iter();
    let Some(shared) = descriptors.next() else { unable("the agent of this job sent no page to share".into()) };
    settings::give_back();
    for (name, value) in &env {
        set_variable(name, value.as_deref());
    }
    promptly::know_server();
    if pmi_fd {
        let Some(fd) = descriptors.next() else { unable("the agent of this job sent no PMI connection".into()) };
        set_variable("PMI_FD", Some(fd.into_raw_fd().to_string().as_bytes()));
    }
    if flavour == Flavour::OpenMpi {
        find_prefix(init);
    }
    if let Err(error) = page::adopt(&shared) {
        unable(format!("cannot share a page with the agent: {error}"));
    }
    mark::register();
    create::joined();
    let identity = identity(&channel);
    *LINK.lock().unwrap_or_else(PoisonError::into_inner) = Some(Link { channel, identity });
}

/// Sets or removes a variable where C code sees it.
pub(crate) fn set_variable(name: &str, value: Option<&[u8]>) {
    let Ok(name) = CString::new(name) else { return };
    match value.map(CString::new) {
        // SAFETY: both are C strings; libc locks the environment against itself.
        Some(Ok(value)) => drop(unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) }),
        // SAFETY: as above.
        None => drop(unsafe { libc::unsetenv(name.as_ptr()) }),
        Some(Err(_)) => {}
    }
}

/// An Open MPI that lies elsewhere than where it was built for (a wheel in a virtual environment, a copied tree) does not
/// find its own files. Its mpirun would set these variables.
fn find_prefix(init: *const c_void) {
    let Some(library) = object_of(init).and_then(|path| path.canonicalize().ok()) else { return };
    let Some(prefix) =
        library.parent().filter(|lib| lib.file_name().is_some_and(|name| name == "lib" || name == "lib64"))
    else {
        return;
    };
    let Some(prefix) = prefix.parent().filter(|prefix| *prefix != Path::new("/usr")) else { return };
    for (variable, data) in [("OPAL_PREFIX", "openmpi"), ("PMIX_PREFIX", "pmix")] {
        if std::env::var_os(variable).is_none() && prefix.join("share").join(data).is_dir() {
            set_variable(variable, Some(prefix.as_os_str().as_bytes()));
        }
    }
}

fn identity(channel: &Channel) -> (u64, u64) {
    // SAFETY: an all-zero stat is a valid value of the type.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    if unsafe { libc::fstat(channel.as_fd().as_raw_fd(), &mut stat) } != 0 {
        return (0, 0);
    }
    (stat.st_dev, stat.st_ino)
}

/// Uses the connection if there is (still) one, in the process that made it.
fn with_channel<T>(body: impl FnOnce(&mut Channel) -> T) -> Option<T> {
    if !page::is_owner() {
        return None;
    }
    let mut link = LINK.lock().unwrap_or_else(PoisonError::into_inner);
    if link.as_ref().is_some_and(|link| identity(&link.channel) != link.identity) {
        // The descriptor is not ours any more: neither use nor close it.
        std::mem::forget(link.take());
    }
    link.as_mut().map(|link| body(&mut link.channel))
}

/// Tells the agent something that it does not answer. An agent that is gone is no reason to fail: the shepherd acts on it.
pub(crate) fn tell(message: &ToAgent) {
    with_channel(|channel| channel.send(message, &[]));
}

/// Tells the agent of an `MPI_Abort` and waits for its word, within bounds. Normally the agent ends the process instead.
pub(crate) fn ask_to_abort(code: i32) {
    with_channel(|channel| {
        if channel.send(&ToAgent::Abort { code }, &[]).is_ok() {
            // Whatever comes, or does not come: the native call is next.
            let _ = channel.receive::<ToRank>(Some(ABORT));
        }
    });
}
