//! Numbers for Prometheus, on an endpoint of their own.

use ft_store::through::Copied;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Scrapes at a time.
const MOST: usize = 16;
/// One that is not over by then never will be.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a connection that could not be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// How often what was measured is put in order if nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(60);

const BUILD: &str = "ftd_build_info";
const ACCEPTED: &str = "ftd_control_connections_total";
const REFUSED: &str = "ftd_control_refused_total";
const PEERS_ACCEPTED: &str = "ftd_peer_connections_total";
const PEERS_REFUSED: &str = "ftd_peer_refused_total";
const STORE_ASKED: &str = "ftd_store_questions_total";
const STORE_REFUSED: &str = "ftd_store_refused_total";
const COPIES: &str = "ftd_copies_total";
const COPIED: &str = "ftd_copied_bytes_total";
const COPIES_WAIT: &str = "ftd_copies_waiting_bytes";
const FOREIGN: &str = "ftd_agent_refused_total";
const RELOADS: &str = "ftd_reloads_total";
const ETCD_UP: &str = "ftd_etcd_up";
const ETCD_REQUESTS: &str = "ftd_etcd_requests_total";
const ETCD_FAILURES: &str = "ftd_etcd_failures_total";
const ETCD_SECONDS: &str = "ftd_etcd_request_seconds";
const LEASE_HELD: &str = "ftd_node_lease_held";
const LEASE_RENEWALS: &str = "ftd_node_lease_renewals_total";
const LEASE_LOSSES: &str = "ftd_node_lease_losses_total";

/// In seconds: an etcd near by answers in a few milliseconds, one that changes its leader in a second or two.
const LATENCIES: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0];

/// Why somebody on the control socket, or who dialled as another node's daemon, was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Too many connections.
    Limit,
    /// Another release.
    Version,
    /// No message that is known.
    Malformed,
    /// Silence.
    Idle,
    /// No certificate in time, or a wrong one.
    Certificate,
}

impl Refusal {
    /// Those of the control socket, where nobody shows a certificate.
    const LOCAL: [Refusal; 4] = [Refusal::Limit, Refusal::Version, Refusal::Malformed, Refusal::Idle];

    /// All.
    pub const ALL: [Refusal; 5] =
        [Refusal::Limit, Refusal::Version, Refusal::Malformed, Refusal::Idle, Refusal::Certificate];

    /// Its number among all.
    pub fn number(self) -> u8 {
        Refusal::ALL.iter().position(|other| *other == self).unwrap_or_default() as u8
    }

    /// The one of that number.
    pub fn of_number(number: u8) -> Option<Refusal> {
        Refusal::ALL.get(usize::from(number)).copied()
    }

    fn label(self) -> &'static str {
        match self {
            Refusal::Limit => "limit",
            Refusal::Version => "version",
            Refusal::Malformed => "malformed",
            Refusal::Idle => "idle",
            Refusal::Certificate => "certificate",
        }
    }
}

/// Why somebody is not served who asks the store as a job's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unserved {
    /// For another reason.
    Dialled(Refusal),
    /// There is no such job of that user's here.
    Job,
    /// A key that is not the job's.
    Key,
}

impl Unserved {
    /// All that there are.
    const ALL: [Unserved; 6] = [
        Unserved::Dialled(Refusal::Limit),
        Unserved::Dialled(Refusal::Version),
        Unserved::Dialled(Refusal::Malformed),
        Unserved::Dialled(Refusal::Idle),
        Unserved::Job,
        Unserved::Key,
    ];

    fn label(self) -> &'static str {
        match self {
            Unserved::Dialled(refusal) => refusal.label(),
            Unserved::Job => "job",
            Unserved::Key => "key",
        }
    }
}

/// What etcd is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A read.
    Read,
    /// A compare-and-swap.
    Write,
    /// A new lease.
    Grant,
    /// A lease that a daemon before this one has left.
    Adopt,
    /// That a lease lasts.
    KeepAlive,
    /// That it ends.
    Revoke,
}

impl Call {
    /// All.
    pub const ALL: [Call; 6] = [Call::Read, Call::Write, Call::Grant, Call::Adopt, Call::KeepAlive, Call::Revoke];

    /// Its name among the metrics.
    pub fn label(self) -> &'static str {
        match self {
            Call::Read => "read",
            Call::Write => "write",
            Call::Grant => "grant",
            Call::Adopt => "adopt",
            Call::KeepAlive => "keep-alive",
            Call::Revoke => "revoke",
        }
    }
}

/// The numbers cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// They cannot be collected.
    #[error("the metrics cannot be kept: {0}")]
    Recorder(String),
    /// Nobody can ask for them.
    #[error("metrics.address: {address} cannot be listened on: {error}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
}

/// Begins to count; every number is there from the first scrape on.
///
/// # Errors
/// [`MetricsError::Recorder`].
pub fn begin() -> Result<PrometheusHandle, MetricsError> {
    let wrong = |error: BuildError| MetricsError::Recorder(error.to_string());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Full(ETCD_SECONDS.into()), &LATENCIES);
    let recorder = builder.map_err(wrong)?.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|error| MetricsError::Recorder(error.to_string()))?;
    describe_gauge!(BUILD, "1; its label says which release runs.");
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    describe_counter!(ACCEPTED, "Connections to the control socket that were served.");
    counter!(ACCEPTED).increment(0);
    describe_counter!(REFUSED, "Connections to the control socket that were refused or ended, by reason.");
    describe_counter!(
        PEERS_ACCEPTED,
        "Connections of other nodes' daemons that were served: one for each part of a job."
    );
    counter!(PEERS_ACCEPTED).increment(0);
    describe_counter!(
        PEERS_REFUSED,
        "Dials where other nodes' daemons find this one that were refused or ended, by reason."
    );
    for refusal in Refusal::LOCAL {
        counter!(REFUSED, "reason" => refusal.label()).increment(0);
    }
    for refusal in Refusal::LOCAL.into_iter().chain([Refusal::Certificate]) {
        counter!(PEERS_REFUSED, "reason" => refusal.label()).increment(0);
    }
    describe_counter!(STORE_ASKED, "What jobs' agents have asked etcd through this daemon.");
    counter!(STORE_ASKED).increment(0);
    describe_counter!(STORE_REFUSED, "What was asked in a job's name and not answered, by reason.");
    for why in Unserved::ALL {
        counter!(STORE_REFUSED, "reason" => why.label()).increment(0);
    }
    describe_copies();
    describe_counter!(RELOADS, "Reloads of the configuration, by result.");
    for result in ["done", "refused"] {
        counter!(RELOADS, "result" => result).increment(0);
    }
    describe();
    Ok(handle)
}

/// What jobs' agents say: of copies of checkpoints, and of what was refused.
fn describe_copies() {
    describe_counter!(
        COPIES,
        "Versions of ranks of jobs here that another node has taken a copy of, or that none takes, by result."
    );
    for result in ["kept", "refused"] {
        counter!(COPIES, "result" => result).increment(0);
    }
    describe_counter!(COPIED, "Bytes of the copies that other nodes have taken.");
    counter!(COPIED).increment(0);
    describe_gauge!(
        COPIES_WAIT,
        "Bytes of checkpoints of jobs here that are on their way to other nodes, or wait for it."
    );
    gauge!(COPIES_WAIT).set(0.0);
    describe_counter!(
        FOREIGN,
        "What came to jobs' agents here without the job's secret, or a second time, and was not heard, by reason."
    );
    for reason in ["forged", "replayed"] {
        counter!(FOREIGN, "reason" => reason).increment(0);
    }
}

/// What is about etcd and the node's place in it.
fn describe() {
    describe_gauge!(ETCD_UP, "1 if etcd answered when it was asked last, 0 if it did not.");
    gauge!(ETCD_UP).set(0.0);
    describe_counter!(ETCD_REQUESTS, "What etcd was asked, by call.");
    describe_counter!(ETCD_FAILURES, "What etcd did not answer, or refused, by call.");
    for call in Call::ALL {
        counter!(ETCD_REQUESTS, "call" => call.label()).increment(0);
        counter!(ETCD_FAILURES, "call" => call.label()).increment(0);
    }
    describe_histogram!(ETCD_SECONDS, "How long etcd took, by call; from the first call of its kind on.");
    describe_gauge!(
        LEASE_HELD,
        "1 if this node has its place in etcd, 0 if it has none, or cannot know for want of etcd."
    );
    gauge!(LEASE_HELD).set(0.0);
    describe_counter!(LEASE_RENEWALS, "How often the node's lease was kept alive.");
    counter!(LEASE_RENEWALS).increment(0);
    describe_counter!(LEASE_LOSSES, "How often the node's lease, or its key, was lost.");
    counter!(LEASE_LOSSES).increment(0);
}

/// etcd was asked, and took so long to answer or not to.
pub fn asked(call: Call, took: Duration, answered: bool) {
    counter!(ETCD_REQUESTS, "call" => call.label()).increment(1);
    counter!(ETCD_FAILURES, "call" => call.label()).increment(u64::from(!answered));
    histogram!(ETCD_SECONDS, "call" => call.label()).record(took.as_secs_f64());
}

/// Whether etcd answers.
pub fn etcd_answers(yes: bool) {
    gauge!(ETCD_UP).set(f64::from(u8::from(yes)));
}

/// Whether the node has its place.
pub fn lease_held(yes: bool) {
    gauge!(LEASE_HELD).set(f64::from(u8::from(yes)));
}

/// The node's lease lasts.
pub fn lease_renewed() {
    counter!(LEASE_RENEWALS).increment(1);
}

/// The node's lease is gone.
pub fn lease_lost() {
    lease_held(false);
    counter!(LEASE_LOSSES).increment(1);
}

/// Somebody on the control socket is served.
pub fn control_accepted() {
    counter!(ACCEPTED).increment(1);
}

/// Somebody on the control socket is not.
pub fn control_refused(refusal: Refusal) {
    counter!(REFUSED, "reason" => refusal.label()).increment(1);
}

/// Another node's daemon is served.
pub fn peer_accepted() {
    counter!(PEERS_ACCEPTED).increment(1);
}

/// Who dialled as another node's daemon is not.
pub fn peer_refused(refusal: Refusal) {
    counter!(PEERS_REFUSED, "reason" => refusal.label()).increment(1);
}

/// A job's agent asks the store something.
pub fn store_asked() {
    counter!(STORE_ASKED).increment(1);
}

/// Somebody who asks the store as a job's agent is not served.
pub fn store_refused(why: Unserved) {
    counter!(STORE_REFUSED, "reason" => why.label()).increment(1);
}

/// A job's agent has said what was copied and refused; before, so many bytes of its waited.
pub fn copied(copied: &Copied, waited: u64) {
    counter!(COPIES, "result" => "kept").increment(copied.copies);
    counter!(COPIES, "result" => "refused").increment(copied.failures);
    counter!(COPIED).increment(copied.bytes);
    counter!(FOREIGN, "reason" => "forged").increment(copied.forged);
    counter!(FOREIGN, "reason" => "replayed").increment(copied.replayed);
    gauge!(COPIES_WAIT).increment(copied.waiting as f64 - waited as f64);
}

/// The configuration was read again.
pub fn reloaded(done: bool) {
    counter!(RELOADS, "result" => if done { "done" } else { "refused" }).increment(1);
}

/// The endpoint.
///
/// # Errors
/// [`MetricsError::Listen`].
pub async fn listen(address: SocketAddr) -> Result<TcpListener, MetricsError> {
    TcpListener::bind(address).await.map_err(|error| MetricsError::Listen { address, error })
}

/// Puts what was measured in order now and then: nobody may scrape.
pub async fn keep_up(handle: PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP).await;
        handle.run_upkeep();
    }
}

/// Answers scrapes for ever, and only so many at a time.
pub async fn serve(listener: TcpListener, handle: PrometheusHandle) {
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(PATIENCE, scrape(stream, handle)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a scrape could not be taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn scrape(stream: TcpStream, handle: PrometheusHandle) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(&request, &handle);
        async move { Ok::<_, Infallible>(answer) }
    });
    // One each: a connection that is kept is one that others cannot have.
    if let Err(error) = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a scrape was not finished");
    }
}

fn answer(request: &Request<Incoming>, handle: &PrometheusHandle) -> Response<Full<Bytes>> {
    let (status, text) = match (request.uri().path(), request.method()) {
        ("/metrics", &Method::GET | &Method::HEAD) => (StatusCode::OK, handle.render()),
        ("/metrics", _) => (StatusCode::METHOD_NOT_ALLOWED, "The metrics are read with GET.\n".into()),
        _ => (StatusCode::NOT_FOUND, "The metrics are at /metrics.\n".into()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    response
}
