//! The thread that starts all processes.
//!
//! A container asks the kernel to kill it when its parent ends, and for the kernel that is the thread that forked it. So this
//! thread lives as long as the runner, and when the process dies, for whatever reason, all containers die with it. Blocking
//! work for the start of a container is also done here.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use tokio::sync::oneshot;

use super::error::Error;

type Job = Box<dyn FnOnce() + Send>;

/// The thread. Dropping it waits until its jobs are done.
#[derive(Debug)]
pub(super) struct Spawner {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Spawner {
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let run = move || queue.into_iter().for_each(|job| job());
        let thread = Builder::new().name("container-spawner".to_owned()).spawn(run)?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues a job. It runs even if the caller drops the receiver.
    pub(super) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(oneshot::Sender<T>) + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, Error> {
        let (sender, outcome) = oneshot::channel();
        let gone = || Error::Thread("the thread that starts containers has ended".to_owned());
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(Box::new(move || job(sender))).map_err(|_closed| gone())?;
        Ok(outcome)
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that starts containers panicked");
        }
    }
}
