//! Mount options as OCI runtimes read them.

use rustix::mount::MountFlags;

use super::step::Attributes;

/// The options of one mount.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountOptions {
    /// Whether a file or directory of the host is meant. Nothing but `bind` or `rbind` says so.
    pub bind: bool,
    /// Whether the mounts below it come along.
    pub recursive: bool,
    /// What the mount does not allow.
    pub attributes: Attributes,
    /// Flags of a file system that is mounted; a bind mount has the attributes instead.
    pub flags: MountFlags,
    /// What is for the file system itself.
    pub data: String,
    /// Options that have no effect here.
    pub ignored: Vec<String>,
}

impl MountOptions {
    pub(super) fn parse(options: &[String]) -> Self {
        let mut parsed = Self {
            bind: false,
            recursive: false,
            attributes: Attributes::default(),
            flags: MountFlags::empty(),
            data: String::new(),
            ignored: Vec::new(),
        };
        let mut data = Vec::new();
        for option in options {
            parsed.option(option, &mut data);
        }
        let Attributes { read_only, no_suid, no_devices, no_programs, .. } = parsed.attributes;
        parsed.flags.set(MountFlags::RDONLY, read_only);
        parsed.flags.set(MountFlags::NOSUID, no_suid);
        parsed.flags.set(MountFlags::NODEV, no_devices);
        parsed.flags.set(MountFlags::NOEXEC, no_programs);
        if parsed.bind {
            parsed.ignored.extend(data.drain(..).map(str::to_owned));
        }
        parsed.data = data.join(",");
        parsed
    }

    fn option<'a>(&mut self, option: &'a str, data: &mut Vec<&'a str>) {
        let attributes = &mut self.attributes;
        match option {
            "bind" => self.bind = true,
            "rbind" => (self.bind, self.recursive) = (true, true),
            "ro" => attributes.read_only = true,
            "rro" => (attributes.read_only, attributes.all) = (true, true),
            "rw" => (attributes.read_only, attributes.all) = (false, false),
            "nosuid" => attributes.no_suid = true,
            "suid" => attributes.no_suid = false,
            "nodev" => attributes.no_devices = true,
            "dev" => attributes.no_devices = false,
            "noexec" => attributes.no_programs = true,
            "exec" => attributes.no_programs = false,
            "defaults" | "async" | "atime" | "relatime" | "norelatime" | "diratime" | "" => {}
            // A container's mounts are its own, and nothing of the host is mounted later.
            "private" | "rprivate" | "slave" | "rslave" => {}
            "noatime" => self.flags |= MountFlags::NOATIME,
            "nodiratime" => self.flags |= MountFlags::NODIRATIME,
            "strictatime" => self.flags |= MountFlags::STRICTATIME,
            "sync" => self.flags |= MountFlags::SYNCHRONOUS,
            "shared" | "rshared" | "unbindable" | "runbindable" | "idmap" | "ridmap" | "tmpcopyup" => {
                self.ignored.push(option.to_owned());
            }
            _ => data.push(option),
        }
    }
}
