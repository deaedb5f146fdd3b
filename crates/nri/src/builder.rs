//! Starting a plugin, and keeping it connected.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::connect::{self, DESCRIPTOR_VARIABLE, INDEX_VARIABLE, NAME_VARIABLE, Source};
use crate::context::Context;
use crate::counters::Metrics;
use crate::error::{ConnectionError, StartError};
use crate::event::Events;
use crate::handle::{Handle, State};
use crate::handler::Handler;
use crate::plugin::NriPlugin;
use crate::session;
use crate::slots::Slots;
use crate::status::chain;
use crate::updater::Updater;

/// Longer than the runtime's 5 s: a busy runtime accepts plugins one after the other.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(30);
/// The same failure is logged once, and then after so many more.
const LOG_EVERY: u32 = 60;

/// A plugin to be started.
#[derive(Debug, Clone)]
#[must_use]
pub struct Plugin {
    name: String,
    index: String,
    events: Events,
    socket: Option<PathBuf>,
    registration_timeout: Duration,
}

impl Plugin {
    /// A plugin with a name (letters, digits and `_ . + -`) and an index from 0 to 99. Plugins are called in the order of their
    /// indexes.
    ///
    /// If the runtime launched this process, name and index are those of its file (`NRI_PLUGIN_NAME`, `NRI_PLUGIN_IDX`).
    pub fn new(name: impl Into<String>, index: u8) -> Self {
        Self {
            name: name.into(),
            index: format!("{index:02}"),
            events: Events::NONE,
            socket: None,
            registration_timeout: REGISTRATION_TIMEOUT,
        }
    }

    /// Subscribes to events. A runtime that does not know one of the later ones is not asked for it.
    pub fn events(mut self, events: impl Into<Events>) -> Self {
        self.events = events.into();
        self
    }

    /// Sets the path of the runtime's socket. By default that of `NRI_SOCKET`, or `/var/run/nri/nri.sock`.
    ///
    /// In a pod mount the directory of the socket and not the socket: the runtime creates it again when it starts.
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// Sets how long the runtime may take to answer the registration. By default 30 s.
    pub fn registration_timeout(mut self, timeout: Duration) -> Self {
        self.registration_timeout = timeout;
        self
    }

    /// Starts the plugin: it connects and stays connected until it is stopped, and connects again whenever the connection is
    /// lost, for ever. Must be called inside a tokio runtime.
    ///
    /// If the runtime launched this process (`NRI_PLUGIN_SOCKET`), its connection is used instead of the path, and the plugin
    /// ends with it.
    pub fn start<P: NriPlugin>(mut self, plugin: Arc<P>) -> Result<Handle, StartError> {
        let source = match std::env::var_os(DESCRIPTOR_VARIABLE) {
            Some(value) => {
                let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
                self.name = variable(NAME_VARIABLE).unwrap_or(self.name);
                self.index = variable(INDEX_VARIABLE).unwrap_or(self.index);
                Source::Connected(Some(connect::launched_connection(&value)?))
            }
            None => Source::Path(connect::socket_path(self.socket.take())),
        };
        self.start_from(source, plugin)
    }

    /// Starts the plugin on a connected socket, and ends it with that.
    pub fn start_on<P: NriPlugin>(
        self,
        stream: std::os::unix::net::UnixStream,
        plugin: Arc<P>,
    ) -> Result<Handle, StartError> {
        self.start_from(Source::Connected(Some(stream)), plugin)
    }

    fn start_from(self, source: Source, handler: Arc<dyn Handler>) -> Result<Handle, StartError> {
        let is_allowed = |character: char| character.is_ascii_alphanumeric() || "_.+-".contains(character);
        if self.name.is_empty() || !self.name.chars().all(is_allowed) {
            return Err(StartError::Name(self.name));
        }
        if self.index.len() != 2 || !self.index.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(StartError::Index(self.index));
        }
        if self.events.is_empty() {
            return Err(StartError::NoEvents);
        }
        let tokio = tokio::runtime::Handle::try_current().map_err(StartError::NoTokioRuntime)?;
        let metrics = Arc::<Metrics>::default();
        let context = Arc::new(Context {
            name: self.name,
            index: self.index,
            events: self.events,
            registration_timeout: self.registration_timeout,
            handler,
            updater: Updater::new(metrics.clone()),
            slots: Slots::new(),
            metrics,
            state: watch::Sender::new(State::Disconnected { since: Instant::now(), error: None }),
            handlers: TaskTracker::new(),
            cancel_handlers: CancellationToken::new(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        let task = tokio.spawn(keep_connected(source, context.clone()));
        Ok(Handle { context, task: Some(task) })
    }
}

/// Connects, serves, and connects again.
async fn keep_connected(mut source: Source, context: Arc<Context>) {
    // Set also if this task is dropped with its runtime.
    let _ended = context.ended.clone().drop_guard();
    let mut backoff = Backoff::default();
    let mut logged = String::new();
    loop {
        let connected = tokio::select! {
            connected = source.connect() => connected,
            () = context.stop.cancelled() => Some(Err(ConnectionError::Stopped)),
        };
        let Some(connected) = connected else { return };
        let error = match connected {
            Ok(stream) => {
                context.metrics.connections.increment();
                let ended = session::run(stream, &context).await;
                context.metrics.disconnections.increment();
                if ended.was_synchronized {
                    backoff.reset();
                }
                ended.error
            }
            Err(error) => {
                if !context.stop.is_cancelled() {
                    context.metrics.connect_failures.increment();
                }
                error
            }
        };
        let delay = backoff.next();
        log(&context, &error, backoff.failures(), &mut logged);
        disconnected(&context, error);
        let is_once = matches!(source, Source::Connected(_));
        if is_once || context.stop.is_cancelled() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = context.stop.cancelled() => {}
        }
    }
}

/// Keeps the time of the first of several failures in a row.
fn disconnected(context: &Context, error: ConnectionError) {
    let error = Some(Arc::new(error));
    context.state.send_modify(|state| {
        let since = match state {
            State::Disconnected { since, .. } => *since,
            State::Registered | State::Synchronized { .. } => Instant::now(),
        };
        *state = State::Disconnected { since, error };
    });
}

/// Logs the first of several failures in a row, each that is not like the one before, and then one of many.
fn log(context: &Context, error: &ConnectionError, failures: u32, logged: &mut String) {
    let plugin = &context.name;
    let text = chain(error);
    if let ConnectionError::Stopped = error {
        tracing::info!(plugin, "NRI plugin stopped");
    } else if failures % LOG_EVERY == 1 || *logged != text {
        tracing::warn!(plugin, error = text, "NRI connection failed, retrying");
        *logged = text;
    } else {
        tracing::debug!(plugin, error = text, failures, "NRI connection failed, retrying");
    }
}
