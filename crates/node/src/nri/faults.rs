//! Faults on demand: what goes wrong with calls to plugins.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drakkar_nri_api::v1alpha1::Event;

/// A kind of call to a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// `Configure`.
    Configure,
    /// `Synchronize`.
    Synchronize,
    /// An event, as a call of its own or as `StateChange`.
    Event(Event),
}

impl From<Event> for Call {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

impl Call {
    /// Returns the name of the method, also of an event that is sent as `StateChange`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Configure => "Configure",
            Self::Synchronize => "Synchronize",
            Self::Event(event) => match event {
                Event::RunPodSandbox => "RunPodSandbox",
                Event::StopPodSandbox => "StopPodSandbox",
                Event::RemovePodSandbox => "RemovePodSandbox",
                Event::CreateContainer => "CreateContainer",
                Event::PostCreateContainer => "PostCreateContainer",
                Event::StartContainer => "StartContainer",
                Event::PostStartContainer => "PostStartContainer",
                Event::UpdateContainer => "UpdateContainer",
                Event::PostUpdateContainer => "PostUpdateContainer",
                Event::StopContainer => "StopContainer",
                Event::RemoveContainer => "RemoveContainer",
                Event::UpdatePodSandbox => "UpdatePodSandbox",
                Event::PostUpdatePodSandbox => "PostUpdatePodSandbox",
                Event::ValidateContainerAdjustment => "ValidateContainerAdjustment",
                Event::Unknown | Event::Last => "Unknown",
            },
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The call is never sent, and the pod goes on: what a runtime does that has forgotten the pod.
    NotSent,
    /// The connection is cut before the call is sent.
    CutBefore,
    /// The connection is cut once the call is sent: the plugin gets it, and nobody gets its answer.
    CutDuring,
    /// The call is delivered this much later, with what is left of the timeout. A delay as long as the timeout ends the
    /// connection without delivering the call, like any call that is too slow.
    Late(Duration),
}

/// The faults to come.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<HashMap<Call, Planned>>);

#[derive(Debug, Default)]
struct Planned {
    next: std::collections::VecDeque<Fault>,
    always: Option<Fault>,
}

impl Faults {
    fn table(&self) -> MutexGuard<'_, HashMap<Call, Planned>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn inject(&self, call: Call, fault: Fault) {
        self.table().entry(call).or_default().next.push_back(fault);
    }

    pub(super) fn inject_always(&self, call: Call, fault: Fault) {
        self.table().entry(call).or_default().always = Some(fault);
    }

    pub(super) fn clear(&self) {
        self.table().clear();
    }

    /// Returns the fault of the call that is about to be made.
    pub(super) fn take(&self, call: Call) -> Option<Fault> {
        let mut table = self.table();
        let planned = table.get_mut(&call)?;
        planned.next.pop_front().or(planned.always)
    }
}
