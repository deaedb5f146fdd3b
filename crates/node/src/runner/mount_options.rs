//! Mount options, as OCI runtimes parse them.

use rustix::mount::MountFlags;

use super::child_action::MountAttributes;

/// Returns the options without effect here.
pub(crate) fn ignored(options: &[String]) -> Vec<String> {
    MountOptions::parse(options).ignored
}

/// The parsed options of a mount.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountOptions {
    /// Whether it is a bind mount of the host. Only `bind` and `rbind` say so.
    pub bind: bool,
    /// Whether submounts are included.
    pub recursive: bool,
    /// The restrictions of a bind mount.
    pub attributes: MountAttributes,
    /// The flags of a file system that is mounted; a bind mount has the attributes instead.
    pub flags: MountFlags,
    /// The options of the file system itself.
    pub data: String,
    /// Options without effect here.
    pub ignored: Vec<String>,
}

impl MountOptions {
    pub(super) fn parse(options: &[String]) -> Self {
        let mut parsed = Self {
            bind: false,
            recursive: false,
            attributes: MountAttributes::default(),
            flags: MountFlags::empty(),
            data: String::new(),
            ignored: Vec::new(),
        };
        let mut data = Vec::new();
        for option in options {
            parsed.option(option, &mut data);
        }
        let MountAttributes { read_only, no_suid, no_dev, no_exec, .. } = parsed.attributes;
        parsed.flags.set(MountFlags::RDONLY, read_only);
        parsed.flags.set(MountFlags::NOSUID, no_suid);
        parsed.flags.set(MountFlags::NODEV, no_dev);
        parsed.flags.set(MountFlags::NOEXEC, no_exec);
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
            "rbind" => {
                self.bind = true;
                self.recursive = true;
            }
            "ro" => attributes.read_only = true,
            "rro" => {
                attributes.read_only = true;
                attributes.recursive = true;
            }
            "rw" => {
                attributes.read_only = false;
                attributes.recursive = false;
            }
            "nosuid" => attributes.no_suid = true,
            "suid" => attributes.no_suid = false,
            "nodev" => attributes.no_dev = true,
            "dev" => attributes.no_dev = false,
            "noexec" => attributes.no_exec = true,
            "exec" => attributes.no_exec = false,
            "defaults" | "async" | "atime" | "relatime" | "norelatime" | "diratime" | "" => {}
            // A container's mounts are private, and nothing of the host is mounted later.
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
