//! The kinds of problems. Their ids are part of the command's interface; docs/doctor.md explains each.

use super::finding::Status;

macro_rules! kinds {
    ($($name:ident $id:literal $status:ident,)*) => {
        /// A kind of problem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Kind {
            $($name,)*
        }

        impl Kind {
            /// All kinds, in the order of the checks.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the stable id.
            pub(crate) const fn id(self) -> &'static str {
                match self {
                    $(Self::$name => $id,)*
                }
            }

            /// Returns whether it is a warning or an error.
            pub(crate) const fn status(self) -> Status {
                match self {
                    $(Self::$name => Status::$status,)*
                }
            }
        }
    };
}

kinds! {
    KubeletDirMissing "kubelet-dir-missing" Error,
    KubeletUnhealthy "kubelet-unhealthy" Error,
    NoDriver "no-driver" Warning,
    RegistrationMissing "registration-missing" Error,
    DriverNotRunning "driver-not-running" Error,
    RegistrationStale "registration-stale" Warning,
    RegistrationNoAnswer "registration-no-answer" Error,
    RegistrationInvalid "registration-invalid" Error,
    DraSocketMissing "dra-socket-missing" Error,
    DraSocketDead "dra-socket-dead" Error,
    DraSocketStale "dra-socket-stale" Warning,
    DriverNotReady "driver-not-ready" Error,
    CdiDisabled "cdi-disabled" Error,
    CdiDirNotWatched "cdi-dir-not-watched" Error,
    RuntimeConfigInvalid "runtime-config-invalid" Warning,
    CdiDirUnusable "cdi-dir-unusable" Error,
    CdiSpecInvalid "cdi-spec-invalid" Error,
    CdiSpecForeign "cdi-spec-foreign" Warning,
    CdiSpecMissing "cdi-spec-missing" Error,
    CdiSpecOrphaned "cdi-spec-orphaned" Warning,
    CdiSpecDiffers "cdi-spec-differs" Error,
    CdiDeviceConflict "cdi-device-conflict" Error,
    NriDisabled "nri-disabled" Error,
    NriSocketMissing "nri-socket-missing" Error,
    PluginDirUnusable "plugin-dir-unusable" Error,
    NotADirectory "not-a-directory" Error,
    WorldWritable "world-writable" Error,
    WrongOwner "wrong-owner" Warning,
    NotWritable "not-writable" Error,
    DiskFull "disk-full" Error,
    DiskLow "disk-low" Warning,
    TemporaryFile "temporary-file" Warning,
    RecordUnreadable "record-unreadable" Error,
    RecordMissing "record-missing" Warning,
    MetadataMissing "metadata-missing" Error,
    MetadataInvalid "metadata-invalid" Error,
    MetadataDiffers "metadata-differs" Error,
    MetadataExtra "metadata-extra" Warning,
    CheckpointUnreadable "checkpoint-unreadable" Error,
    ClaimUnknownToKubelet "claim-unknown-to-kubelet" Warning,
    ClaimNotPrepared "claim-not-prepared" Error,
    ClaimGone "claim-gone" Warning,
    ClaimReplaced "claim-replaced" Error,
    AllocationDiffers "allocation-differs" Error,
    ApiConfigInvalid "api-config-invalid" Error,
    ApiUnreachable "api-unreachable" Error,
    ApiUnauthorized "api-unauthorized" Error,
    ApiForbidden "api-forbidden" Error,
    ClockSkew "clock-skew" Warning,
    DraNotServed "dra-not-served" Error,
    VersionTooOld "version-too-old" Warning,
    FeatureGateOff "feature-gate-off" Error,
    NodeNotFound "node-not-found" Error,
    DeviceClassMissing "device-class-missing" Warning,
    ResourceSliceMissing "resource-slice-missing" Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of docs/doctor.md has one row for each kind: `id`, level, meaning, what to do.
    #[test]
    fn the_page_lists_the_same_problems_in_the_same_order() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
        let listed: Vec<String> = rows
            .iter()
            .filter(|row| row.len() == 4)
            .map(|row| format!("{} {}", row[0].trim_end_matches('`'), row[1]))
            .collect();
        let known: Vec<String> = Kind::ALL
            .iter()
            .map(|kind| format!("{} {}", kind.id(), format!("{:?}", kind.status()).to_lowercase()))
            .collect();
        assert_eq!(listed, known);
    }
}
