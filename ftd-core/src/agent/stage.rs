//! Where an agent is in its epoch.

/// Where an agent is in its epoch; see the [module's table](super).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// No record yet.
    #[default]
    Gathering,
    /// There was a record when this agent started.
    Restarted,
    /// There was a record, and this node is not in it yet.
    Joining,
    /// Older worlds are being killed.
    Emptying,
    /// The killed world's output is being read, slots are coming up.
    Draining,
    /// The world is launched and waits.
    Parked,
    /// The world is released.
    Computing,
    /// The job is over; its processes are being killed.
    Ending,
    /// The last effect was given.
    Over,
}
