//! The events of NRI, and sets of them.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub};

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Event {
    /// A pod sandbox runs: its network exists, and it has no container yet.
    RunPodSandbox = 1,
    /// A pod sandbox stops.
    StopPodSandbox = 2,
    /// A pod sandbox is removed.
    RemovePodSandbox = 3,
    /// A container is about to be created.
    CreateContainer = 4,
    /// A container was created.
    PostCreateContainer = 5,
    /// A container is about to start.
    StartContainer = 6,
    /// A container has started.
    PostStartContainer = 7,
    /// The resources of a container are about to change.
    UpdateContainer = 8,
    /// The resources of a container have changed.
    PostUpdateContainer = 9,
    /// A container has stopped.
    StopContainer = 10,
    /// A container is removed.
    RemoveContainer = 11,
    /// The resources of a pod are about to change. Since NRI 0.10.
    UpdatePodSandbox = 12,
    /// The resources of a pod have changed. Since NRI 0.10.
    PostUpdatePodSandbox = 13,
    /// The adjustments of all plugins to a container are to be accepted or rejected. Since NRI 0.10.
    ValidateContainerAdjustment = 14,
}

impl Event {
    /// All events, in the order of their numbers.
    pub const ALL: [Self; 14] = [
        Self::RunPodSandbox,
        Self::StopPodSandbox,
        Self::RemovePodSandbox,
        Self::CreateContainer,
        Self::PostCreateContainer,
        Self::StartContainer,
        Self::PostStartContainer,
        Self::UpdateContainer,
        Self::PostUpdateContainer,
        Self::StopContainer,
        Self::RemoveContainer,
        Self::UpdatePodSandbox,
        Self::PostUpdatePodSandbox,
        Self::ValidateContainerAdjustment,
    ];

    /// Returns the name of its method, such as `RunPodSandbox`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RunPodSandbox => "RunPodSandbox",
            Self::StopPodSandbox => "StopPodSandbox",
            Self::RemovePodSandbox => "RemovePodSandbox",
            Self::CreateContainer => "CreateContainer",
            Self::PostCreateContainer => "PostCreateContainer",
            Self::StartContainer => "StartContainer",
            Self::PostStartContainer => "PostStartContainer",
            Self::UpdateContainer => "UpdateContainer",
            Self::PostUpdateContainer => "PostUpdateContainer",
            Self::StopContainer => "StopContainer",
            Self::RemoveContainer => "RemoveContainer",
            Self::UpdatePodSandbox => "UpdatePodSandbox",
            Self::PostUpdatePodSandbox => "PostUpdatePodSandbox",
            Self::ValidateContainerAdjustment => "ValidateContainerAdjustment",
        }
    }

    /// Returns its number in NRI, from 1.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns whether it has an empty answer, so that runtimes with NRI 0.11 and older send it as `StateChange`.
    pub(crate) const fn is_state_change(self) -> bool {
        !matches!(
            self,
            Self::CreateContainer
                | Self::UpdateContainer
                | Self::StopContainer
                | Self::UpdatePodSandbox
                | Self::ValidateContainerAdjustment
        )
    }

    /// Returns whether something ends, which a plugin must not prevent: such an event never fails.
    pub(crate) const fn is_end(self) -> bool {
        matches!(self, Self::StopPodSandbox | Self::RemovePodSandbox | Self::RemoveContainer)
    }

    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|event| i32::from(event.number()) == number)
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.name() == name)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of events to subscribe to.
///
/// ```
/// use drakkar_nri::{Event, Events};
///
/// let events = Events::POD_LIFECYCLE | Event::CreateContainer;
/// assert_eq!(events.mask(), 0xf);
/// assert_eq!(events.to_string(), "RunPodSandbox, StopPodSandbox, RemovePodSandbox, CreateContainer");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Events(u16);

impl Events {
    /// No event. A plugin cannot subscribe to this: on the wire it means all events.
    pub const NONE: Self = Self(0);
    /// Run, stop and remove a pod sandbox: what a network driver needs.
    pub const POD_LIFECYCLE: Self = Self(0x0007);
    /// The eleven events that every runtime knows.
    pub const ORIGINAL: Self = Self(0x07ff);
    /// All events up to NRI 0.12.
    pub const ALL: Self = Self(0x3fff);

    /// Returns the mask in which an event of number n is bit n − 1.
    pub const fn mask(self) -> u16 {
        self.0
    }

    /// Makes a set of a mask. Bits that are no event are dropped.
    pub const fn from_mask(mask: u16) -> Self {
        Self(mask & Self::ALL.0)
    }

    /// Returns whether an event is in the set.
    pub const fn contains(self, event: Event) -> bool {
        self.0 & (1 << (event.number() - 1)) != 0
    }

    /// Returns whether there is no event in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the events in the set.
    pub fn iter(self) -> impl Iterator<Item = Event> {
        Event::ALL.into_iter().filter(move |event| self.contains(*event))
    }
}

impl From<Event> for Events {
    fn from(event: Event) -> Self {
        Self(1 << (event.number() - 1))
    }
}

impl FromIterator<Event> for Events {
    fn from_iter<T: IntoIterator<Item = Event>>(events: T) -> Self {
        events.into_iter().fold(Self::NONE, BitOr::bitor)
    }
}

impl<T: Into<Self>> BitOr<T> for Events {
    type Output = Self;

    fn bitor(self, other: T) -> Self {
        Self(self.0 | other.into().0)
    }
}

impl<T: Into<Self>> BitOrAssign<T> for Events {
    fn bitor_assign(&mut self, other: T) {
        *self = *self | other;
    }
}

impl BitOr<Self> for Event {
    type Output = Events;

    fn bitor(self, other: Self) -> Events {
        Events::from(self) | other
    }
}

impl BitAnd for Events {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Sub for Events {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, event) in self.iter().enumerate() {
            f.write_str(if position == 0 { "" } else { ", " })?;
            f.write_str(event.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({:#06x}: {self})", self.0)
    }
}
