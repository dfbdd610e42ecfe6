//! What the service manager is told (`sd_notify`). Without one nobody is.

use sd_notify::NotifyState;
use std::time::Duration;

fn tell(what: &[NotifyState<'_>]) {
    // Of those that the daemon starts it wants to hear nothing: theirs is empty.
    if std::env::var_os("NOTIFY_SOCKET").is_none_or(|name| name.is_empty()) {
        return;
    }
    if let Err(error) = sd_notify::notify(what) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}

/// The daemon does its work.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is read again; `ready` ends that.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// The daemon ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// What `systemctl status` shows.
pub fn status(sentence: &str) {
    tell(&[NotifyState::Status(&sentence.replace('\n', "; "))]);
}

/// Says, as often as the service manager wants, that this runtime still runs tasks.
pub async fn watchdog() {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    loop {
        tell(&[NotifyState::Watchdog]);
        tokio::time::sleep((period / 3).max(Duration::from_millis(10))).await;
    }
}
