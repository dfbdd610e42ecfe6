//! `libft_preload.so`: what the launcher puts in front of a rank with `LD_PRELOAD`.
//!
//! Nothing happens until the program enters `MPI_Init` (or its relatives): bash, numactl and python run undisturbed. Then
//! the library asks the loaded MPI what it is, tells the job's agent, gets the environment that this MPI wants, and only
//! then lets the native call run. From there on a page of memory that the agent shares says in which phase the process is,
//! and a robust mutex in it says, before the kernel has torn the process down, that it died.
//!
//! A process without `FT_SOCKET` in its environment gets the native calls and nothing else, unless it stands below a
//! shepherd: there it would be a job of its own, and does not enter `MPI_Init`.
//!
//! The Fortran bindings of Open MPI, MPICH and Intel MPI call the C functions through the dynamic linker, so only the C
//! names are interposed.

mod above;
mod cleared;
mod create;
mod link;
mod mark;
mod mpi;
mod native;
mod objects;
mod opens;
mod owner;
mod page;
mod probe;
mod promptly;
mod settings;
mod stdout;

pub use cleared::{execv, execve, execveat, execvp, execvpe, fexecve, posix_spawn, posix_spawnp};
pub use create::{mkostemp, mkostemp64, mkstemp, mkstemp64, open, open64, openat, openat64, shm_open, shmget};
pub use mark::{_Exit, _exit, exit, quick_exit};
pub use mpi::{
    MPI_Abort, MPI_Finalize, MPI_Init, MPI_Init_thread, MPI_Session_finalize, MPI_Session_init, MPI_T_init_thread,
    PMPI_Abort, PMPI_Finalize, PMPI_Init, PMPI_Init_thread, PMPI_Session_finalize, PMPI_Session_init,
    PMPI_T_init_thread,
};
pub use opens::interposed_dlopen;
pub use probe::interposed_dlsym;
pub use promptly::connect;

/// ftrun reads in this file which build it is of.
#[used]
static BUILD: fn() = ft_sys::build::keep;
