//! The labels of metrics: fixed sets of values, so that no name from a cluster can ever make a new series.

use prometheus_client::encoding::{EncodeLabel as _, EncodeLabelSet, LabelSetEncoder};
use tonic::Code as Grpc;

/// Labels whose values are known when the program is built.
pub(super) trait LabelSet: EncodeLabelSet + std::fmt::Debug + Copy + Send + Sync + 'static {
    /// How many there are.
    const COUNT: usize;

    /// All of them, in the order of their index.
    fn all() -> impl Iterator<Item = Self>;

    /// Where this one is among all: less than [`Self::COUNT`].
    fn index(self) -> usize;
}

impl<A: LabelSet, B: LabelSet> LabelSet for (A, B) {
    const COUNT: usize = A::COUNT * B::COUNT;

    fn all() -> impl Iterator<Item = Self> {
        A::all().flat_map(|a| B::all().map(move |b| (a, b)))
    }

    fn index(self) -> usize {
        self.0.index() * B::COUNT + self.1.index()
    }
}

/// An enum whose variants are the values of one label.
macro_rules! label {
    ($(#[$enum_doc:meta])* $name:ident is $label:literal { $($(#[$doc:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$enum_doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            const ALL: &[Self] = &[$(Self::$variant),+];

            /// The value of the label.
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $value,)+
                }
            }
        }

        impl LabelSet for $name {
            const COUNT: usize = Self::ALL.len();

            fn all() -> impl Iterator<Item = Self> {
                Self::ALL.iter().copied()
            }

            fn index(self) -> usize {
                self as usize
            }
        }

        impl EncodeLabelSet for $name {
            fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
                ($label, self.as_str()).encode(encoder.encode_label())
            }
        }
    };
}

label! {
    /// What a kubelet calls.
    Method is "method" {
        /// `NodePrepareResources`.
        Prepare = "prepare",
        /// `NodeUnprepareResources`.
        Unprepare = "unprepare",
        /// `GetInfo` of the registration service.
        GetInfo = "get_info",
        /// `NotifyRegistrationStatus` of the registration service.
        Notify = "notify",
        /// `NodeWatchResources` of the health service: a stream.
        WatchHealth = "watch_health",
    }
}

impl Method {
    /// Whether some kubelet calls this method in that version.
    pub(super) fn exists_in(self, version: Version) -> bool {
        match self {
            Self::Prepare | Self::Unprepare => matches!(version, Version::V1 | Version::V1beta1),
            Self::GetInfo | Self::Notify => version == Version::V1,
            Self::WatchHealth => matches!(version, Version::V1 | Version::V1alpha1),
        }
    }
}

label! {
    /// The methods that answer once, and so take a time that means something.
    UnaryMethod is "method" {
        /// See [`Method::Prepare`].
        Prepare = "prepare",
        /// See [`Method::Unprepare`].
        Unprepare = "unprepare",
        /// See [`Method::GetInfo`].
        GetInfo = "get_info",
        /// See [`Method::Notify`].
        Notify = "notify",
    }
}

impl UnaryMethod {
    /// The same method, unless it is a stream.
    pub(super) fn of(method: Method) -> Option<Self> {
        match method {
            Method::Prepare => Some(Self::Prepare),
            Method::Unprepare => Some(Self::Unprepare),
            Method::GetInfo => Some(Self::GetInfo),
            Method::Notify => Some(Self::Notify),
            Method::WatchHealth => None,
        }
    }
}

label! {
    /// What is done to a slice.
    SliceWrite is "operation" {
        /// It is created.
        Create = "create",
        /// It is replaced.
        Update = "update",
        /// It is deleted.
        Delete = "delete",
    }
}

label! {
    /// What became of a write.
    WriteOutcome is "outcome" {
        /// It was done.
        Success = "success",
        /// It was not.
        Failed = "failed",
    }
}

label! {
    /// Why resources are not published, or not as they should be.
    SliceProblem is "problem" {
        /// What the driver published is not valid.
        Invalid = "invalid",
        /// The driver's service account may not do it.
        Forbidden = "forbidden",
        /// The API server refuses a slice.
        Rejected = "rejected",
        /// The API server dropped fields.
        DroppedFields = "dropped_fields",
        /// Somebody else changes the slices.
        Contested = "contested",
        /// The API server gives no usable answer.
        Unanswered = "unanswered",
    }
}

label! {
    /// The version of a gRPC service.
    Version is "version" {
        /// DRA, health and registration.
        V1 = "v1",
        /// DRA.
        V1beta1 = "v1beta1",
        /// Health.
        V1alpha1 = "v1alpha1",
    }
}

label! {
    /// How a gRPC call ended.
    Code is "code" {
        /// It was answered. Single claims may have failed nevertheless.
        Ok = "ok",
        /// The kubelet gave up or the driver was stopped, before there was an answer.
        Cancelled = "cancelled",
        /// gRPC's code of that name.
        Unknown = "unknown",
        /// gRPC's code of that name.
        InvalidArgument = "invalid_argument",
        /// gRPC's code of that name.
        DeadlineExceeded = "deadline_exceeded",
        /// gRPC's code of that name.
        NotFound = "not_found",
        /// gRPC's code of that name.
        AlreadyExists = "already_exists",
        /// gRPC's code of that name.
        PermissionDenied = "permission_denied",
        /// gRPC's code of that name.
        ResourceExhausted = "resource_exhausted",
        /// gRPC's code of that name.
        FailedPrecondition = "failed_precondition",
        /// gRPC's code of that name.
        Aborted = "aborted",
        /// gRPC's code of that name.
        OutOfRange = "out_of_range",
        /// gRPC's code of that name.
        Unimplemented = "unimplemented",
        /// A panic, among others.
        Internal = "internal",
        /// gRPC's code of that name.
        Unavailable = "unavailable",
        /// gRPC's code of that name.
        DataLoss = "data_loss",
        /// gRPC's code of that name.
        Unauthenticated = "unauthenticated",
    }
}

impl From<Grpc> for Code {
    fn from(code: Grpc) -> Self {
        match code {
            Grpc::Ok => Self::Ok,
            Grpc::Cancelled => Self::Cancelled,
            Grpc::Unknown => Self::Unknown,
            Grpc::InvalidArgument => Self::InvalidArgument,
            Grpc::DeadlineExceeded => Self::DeadlineExceeded,
            Grpc::NotFound => Self::NotFound,
            Grpc::AlreadyExists => Self::AlreadyExists,
            Grpc::PermissionDenied => Self::PermissionDenied,
            Grpc::ResourceExhausted => Self::ResourceExhausted,
            Grpc::FailedPrecondition => Self::FailedPrecondition,
            Grpc::Aborted => Self::Aborted,
            Grpc::OutOfRange => Self::OutOfRange,
            Grpc::Unimplemented => Self::Unimplemented,
            Grpc::Internal => Self::Internal,
            Grpc::Unavailable => Self::Unavailable,
            Grpc::DataLoss => Self::DataLoss,
            Grpc::Unauthenticated => Self::Unauthenticated,
        }
    }
}

label! {
    /// What is done with a claim.
    Operation is "operation" {
        /// It is made ready for the pod's containers.
        Prepare = "prepare",
        /// That is undone.
        Unprepare = "unprepare",
    }
}

label! {
    /// What became of one claim in a call.
    Outcome is "outcome" {
        /// It was done.
        Success = "success",
        /// The request has names that cannot be: nothing was looked up.
        Invalid = "invalid",
        /// The claim could not be read from the API server.
        Api = "api",
        /// The API server has no such claim.
        NotFound = "not_found",
        /// The API server has another claim of that name.
        WrongUid = "wrong_uid",
        /// The claim has no allocation.
        NotAllocated = "not_allocated",
        /// A device is held by another claim.
        Conflict = "conflict",
        /// The driver returned an error.
        Driver = "driver",
        /// The driver panicked.
        Panic = "panic",
        /// What the driver returned breaks a rule.
        Result = "result",
        /// Metadata files or CDI specs could not be written or removed.
        Metadata = "metadata",
        /// The lock between instances of the driver was not to be had.
        Lock = "lock",
    }
}

label! {
    /// What the API server answered to a request for a claim.
    ApiAnswer is "code" {
        /// The claim.
        Success = "2xx",
        /// A redirection, which nobody follows.
        Redirection = "3xx",
        /// Not found, not permitted, too many requests.
        ClientError = "4xx",
        /// The server is not well.
        ServerError = "5xx",
        /// Nothing that is an answer: no connection, a timeout, a call that was given up.
        None = "none",
    }
}

impl ApiAnswer {
    /// The class of an HTTP status.
    pub(crate) fn of_status(status: u16) -> Self {
        match status {
            200..300 => Self::Success,
            300..400 => Self::Redirection,
            400..500 => Self::ClientError,
            500..600 => Self::ServerError,
            _ => Self::None,
        }
    }
}

label! {
    /// What is done with the metadata files of a claim.
    FileWork is "operation" {
        /// They are written, with their CDI specs.
        Prepare = "prepare",
        /// One of them is replaced in place.
        Update = "update",
        /// They are removed.
        Unprepare = "unprepare",
    }
}

label! {
    /// What became of an update of metadata.
    UpdateOutcome is "outcome" {
        /// Containers see the new content.
        Success = "success",
        /// It breaks a rule: a claim, request or device that is not prepared here, or values that cannot be.
        Refused = "refused",
        /// It could not be written.
        Failed = "failed",
    }
}

label! {
    /// What became of a report of a device's status.
    ReportOutcome is "outcome" {
        /// The API server has it.
        Delivered = "delivered",
        /// A later report of the same device came before it was delivered.
        Superseded = "superseded",
        /// It breaks a rule, is of a device that is not the claim's, or too many wait.
        Refused = "refused",
        /// The driver may not do that, and nobody changed it in time.
        Denied = "denied",
        /// It could not be delivered in time, or the API server refuses it.
        Failed = "failed",
        /// The claim is gone, replaced, deallocated or unprepared.
        Dropped = "dropped",
    }
}

label! {
    /// How bad an error of a background task is.
    Severity is "severity" {
        /// The driver cannot go on.
        Fatal = "fatal",
        /// It will be tried again.
        Recoverable = "recoverable",
    }
}

label! {
    /// What a driver reports of a device.
    DeviceHealth is "status" {
        /// It works.
        Healthy = "healthy",
        /// It does not.
        Unhealthy = "unhealthy",
        /// Nobody knows, or the last report is too old.
        Unknown = "unknown",
    }
}
