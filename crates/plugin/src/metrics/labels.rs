//! The labels of metrics: fixed sets of values, so that no name from a cluster can create a new series.

use prometheus_client::encoding::{EncodeLabel as _, EncodeLabelSet, LabelSetEncoder};
use tonic::Code as Grpc;

/// Labels with a fixed set of values.
pub(super) trait LabelSet: EncodeLabelSet + std::fmt::Debug + Copy + Send + Sync + 'static {
    /// The number of values.
    const COUNT: usize;

    /// Returns all values in the order of their index.
    fn all() -> impl Iterator<Item = Self>;

    /// Returns the index of this value, which is less than [`Self::COUNT`].
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

/// Defines an enum whose variants are the values of one label.
macro_rules! label {
    ($(#[$enum_doc:meta])* $name:ident is $label:literal { $($(#[$doc:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$enum_doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the value of the label.
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
    /// A gRPC method that kubelets call.
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
    /// Whether kubelets call this method in this version.
    pub(super) fn exists_in(self, version: Version) -> bool {
        match self {
            Self::Prepare | Self::Unprepare => matches!(version, Version::V1 | Version::V1beta1),
            Self::GetInfo | Self::Notify => version == Version::V1,
            Self::WatchHealth => matches!(version, Version::V1 | Version::V1alpha1),
        }
    }
}

label! {
    /// A unary gRPC method. The duration of a stream would be meaningless.
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
    /// Converts a method. Returns `None` for a stream.
    pub(super) fn from_method(method: Method) -> Option<Self> {
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
    /// A write of a slice.
    SliceWrite is "operation" {
        /// The slice is created.
        Create = "create",
        /// The slice is replaced.
        Update = "update",
        /// The slice is deleted.
        Delete = "delete",
    }
}

label! {
    /// The outcome of a write.
    WriteOutcome is "outcome" {
        /// The write succeeded.
        Success = "success",
        /// The write failed.
        Failed = "failed",
    }
}

label! {
    /// The reason why resources are not published as desired.
    SliceProblem is "problem" {
        /// The resources that the driver published are invalid.
        Invalid = "invalid",
        /// The driver's service account lacks a permission.
        Forbidden = "forbidden",
        /// The API server refuses a slice.
        Rejected = "rejected",
        /// The API server dropped fields.
        DroppedFields = "dropped_fields",
        /// Another client changes the slices.
        Contested = "contested",
        /// The API server returns no usable response.
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
    /// The status code of a gRPC call.
    Code is "code" {
        /// The call succeeded. Some of its claims may have failed.
        Ok = "ok",
        /// The kubelet cancelled the call or the driver was stopped.
        Cancelled = "cancelled",
        /// The gRPC code of the same name.
        Unknown = "unknown",
        /// The gRPC code of the same name.
        InvalidArgument = "invalid_argument",
        /// The gRPC code of the same name.
        DeadlineExceeded = "deadline_exceeded",
        /// The gRPC code of the same name.
        NotFound = "not_found",
        /// The gRPC code of the same name.
        AlreadyExists = "already_exists",
        /// The gRPC code of the same name.
        PermissionDenied = "permission_denied",
        /// The gRPC code of the same name.
        ResourceExhausted = "resource_exhausted",
        /// The gRPC code of the same name.
        FailedPrecondition = "failed_precondition",
        /// The gRPC code of the same name.
        Aborted = "aborted",
        /// The gRPC code of the same name.
        OutOfRange = "out_of_range",
        /// The gRPC code of the same name.
        Unimplemented = "unimplemented",
        /// The gRPC code of the same name, also for panics.
        Internal = "internal",
        /// The gRPC code of the same name.
        Unavailable = "unavailable",
        /// The gRPC code of the same name.
        DataLoss = "data_loss",
        /// The gRPC code of the same name.
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
    /// An operation on a claim.
    Operation is "operation" {
        /// The claim is prepared for the pod's containers.
        Prepare = "prepare",
        /// The claim is unprepared.
        Unprepare = "unprepare",
    }
}

label! {
    /// The outcome for one claim of a call.
    Outcome is "outcome" {
        /// The operation succeeded.
        Success = "success",
        /// The request has invalid names.
        Invalid = "invalid",
        /// The claim could not be read from the API server.
        Api = "api",
        /// The API server has no such claim.
        NotFound = "not_found",
        /// The API server has another claim with the same name.
        WrongUid = "wrong_uid",
        /// The claim has no allocation.
        NotAllocated = "not_allocated",
        /// A device is held by another claim.
        Conflict = "conflict",
        /// The driver returned an error.
        Driver = "driver",
        /// The driver panicked.
        Panic = "panic",
        /// The driver returned an invalid result.
        Result = "result",
        /// Metadata files or CDI specs could not be written or removed.
        Metadata = "metadata",
        /// The lock between instances of the driver could not be acquired.
        Lock = "lock",
    }
}

label! {
    /// The API server's response to a request for a claim.
    ApiAnswer is "code" {
        /// The claim.
        Success = "2xx",
        /// A redirection, which is not followed.
        Redirection = "3xx",
        /// Not found, not permitted, too many requests.
        ClientError = "4xx",
        /// An error of the server.
        ServerError = "5xx",
        /// No response: no connection, a timeout or a cancelled call.
        None = "none",
    }
}

impl ApiAnswer {
    /// Returns the class of an HTTP status.
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
    /// Work on the metadata files of a claim.
    FileWork is "operation" {
        /// The files and their CDI specs are written.
        Prepare = "prepare",
        /// A file is updated in place.
        Update = "update",
        /// The files and their CDI specs are removed.
        Unprepare = "unprepare",
    }
}

label! {
    /// The outcome of a metadata update.
    UpdateOutcome is "outcome" {
        /// Containers see the new content.
        Success = "success",
        /// The update is invalid: a claim, request or device that is not prepared here, or invalid values.
        Refused = "refused",
        /// The update could not be written.
        Failed = "failed",
    }
}

label! {
    /// The outcome of a device status report.
    ReportOutcome is "outcome" {
        /// The API server has the report.
        Delivered = "delivered",
        /// A later report for the same device replaced it before it was delivered.
        Superseded = "superseded",
        /// The report is invalid, is for a device that is not allocated to the claim, or the queue is full.
        Refused = "refused",
        /// The driver lacks a permission, and did not get it in time.
        Denied = "denied",
        /// The report could not be delivered in time, or the API server rejects it.
        Failed = "failed",
        /// The claim is gone, replaced, deallocated or unprepared.
        Dropped = "dropped",
    }
}

label! {
    /// The severity of a background error.
    Severity is "severity" {
        /// The driver ends.
        Fatal = "fatal",
        /// The work is retried.
        Recoverable = "recoverable",
    }
}

label! {
    /// The health of a device.
    DeviceHealth is "status" {
        /// The device works.
        Healthy = "healthy",
        /// The device does not work.
        Unhealthy = "unhealthy",
        /// The health is not known, or the lease of the last report has expired.
        Unknown = "unknown",
    }
}
