//! The log, on standard error: the journal's, or whoever's started the daemon by hand. Nobody waits for who reads it.

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, reload};

/// What is logged; it can be changed.
pub struct Filter(Box<dyn Fn(&str)>);

impl Filter {
    /// Logs what the configuration says from now on.
    pub fn set(&self, text: &str) {
        (self.0)(text);
    }
}

/// Begins to log.
pub fn begin(filter: &str) -> Filter {
    let wanted = |text: &str| EnvFilter::try_new(text).unwrap_or_else(|_| "info".into());
    let (layer, handle) = reload::Layer::new(wanted(filter));
    let lines =
        fmt::layer().with_writer(|| ft_sys::log::Log).with_ansi(false).with_target(false).log_internal_errors(false);
    // The journal has the time of every line.
    let lines = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => lines.without_time().boxed(),
        None => lines.boxed(),
    };
    tracing_subscriber::registry().with(layer).with(lines).init();
    Filter(Box::new(move |text| {
        if let Err(error) = handle.reload(wanted(text)) {
            tracing::warn!(%error, "log.filter could not be changed");
        }
    }))
}
