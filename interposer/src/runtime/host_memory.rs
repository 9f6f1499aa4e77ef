//! How much host memory may be taken: what the kernel says is available, and what every control group that the process is in leaves.
//! Who takes it, and the user's own limit, are others' matter.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use flextensor_core::units::Bytes;

/// Who says how much there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// `MemAvailable` of the machine.
    Machine,
    /// The limit of this control group.
    Group(String),
}

/// Host memory that may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Available {
    pub(super) bytes: u64,
    source: Source,
}

impl Display for Available {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Machine => write!(out, "{}", Bytes(self.bytes)),
            Source::Group(name) => {
                write!(out, "{} within the memory limit of control group {name}", Bytes(self.bytes))
            }
        }
    }
}

/// Host memory that may be taken now, less a twentieth. None where the system does not tell.
pub(super) fn available() -> Option<Available> {
    available_under(Path::new("/"))
}

/// The same by the files below `root`.
fn available_under(root: &Path) -> Option<Available> {
    let mut least = Available { bytes: machine(root)?, source: Source::Machine };
    for group in groups(root) {
        if let Some(bytes) = group.headroom().filter(|&bytes| bytes < least.bytes) {
            least = Available { bytes, source: Source::Group(group.name) };
        }
    }
    least.bytes = least.bytes / 20 * 19;
    Some(least)
}

fn machine(root: &Path) -> Option<u64> {
    meminfo(root, "MemAvailable:")
}

/// Host memory that the process could have at all, whoever holds it now: the machine's, or what the tightest control group allows. A share of it stays the same
/// while memory is taken. None where the system does not tell.
pub(super) fn total() -> Option<u64> {
    total_under(Path::new("/"))
}

fn total_under(root: &Path) -> Option<u64> {
    let limits = groups(root).into_iter().filter_map(|group| group.limit());
    Some(limits.fold(meminfo(root, "MemTotal:")?, u64::min))
}

fn meminfo(root: &Path, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix("kB"));
    Some(kib?.trim().parse::<u64>().ok()? << 10)
}

/// The files of a version of control groups.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// Keys of `memory.stat` that say what files have in memory: the kernel drops them when memory is wanted.
    files: [&'static str; 2],
}

const SECOND: Files =
    Files { limit: "memory.max", used: "memory.current", files: ["inactive_file", "active_file"] };
const FIRST: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};

/// A control group that may limit the process.
struct Group {
    name: String,
    folder: PathBuf,
    files: &'static Files,
}

impl Group {
    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.join(name)).ok()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.read(name)?.trim().parse().ok()
    }

    /// Bytes that it allows; none where it does not limit.
    fn limit(&self) -> Option<u64> {
        self.number(self.files.limit)
    }

    /// Bytes that it leaves; none where it does not limit.
    fn headroom(&self) -> Option<u64> {
        let (limit, used) = (self.limit()?, self.number(self.files.used)?);
        let in_files = bytes_of_files(&self.read("memory.stat").unwrap_or_default(), self.files.files);
        Some(limit.saturating_sub(used.saturating_sub(in_files)))
    }
}

fn bytes_of_files(stat: &str, keys: [&str; 2]) -> u64 {
    let value = |line: &str| {
        let (key, bytes) = line.split_once(' ')?;
        keys.contains(&key).then(|| bytes.trim().parse::<u64>().ok())?
    };
    stat.lines().filter_map(value).sum()
}

/// The groups that the process is in, and those around them. In a container the mounted tree may begin at the process's own group, whatever its path says: what
/// is not there is left out, and the tree's root is looked at in any case.
fn groups(root: &Path) -> Vec<Group> {
    let mounts = root.join("sys/fs/cgroup");
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let trees: &[(PathBuf, &'static Files)] = if controllers.is_empty() {
            &[(mounts.clone(), &SECOND), (mounts.join("unified"), &SECOND)]
        } else if controllers.split(',').any(|controller| controller == "memory") {
            &[(mounts.join("memory"), &FIRST)]
        } else {
            continue;
        };
        for (tree, files) in trees {
            found.extend(around(tree, path, files));
        }
    }
    found
}

fn around(tree: &Path, path: &str, files: &'static Files) -> Vec<Group> {
    let inner = Path::new(path.trim_start_matches('/'));
    // A path out of the tree (`/../..`) names groups that cannot be seen from here.
    let plain = inner.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let inner = if plain { inner } else { Path::new("") };
    let group =
        |inner: &Path| Group { name: format!("/{}", inner.display()), folder: tree.join(inner), files };
    inner.ancestors().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system of these files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        let meminfo = [("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable:    2000 kB\n")];
        for (name, text) in meminfo.iter().chain(files) {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a fresh folder");
            std::fs::write(path, text).expect("a fresh file");
        }
        root
    }

    fn available_in(files: &[(&str, &str)]) -> Available {
        available_under(system(files).path()).expect("the system tells")
    }

    /// Bytes that are left of so many.
    fn most(bytes: u64) -> u64 {
        bytes / 20 * 19
    }

    #[test]
    fn without_groups_the_machine_says_what_is_available() {
        assert_eq!(available_in(&[]), Available { bytes: most(2000 << 10), source: Source::Machine });
    }

    #[test]
    fn a_group_of_either_version_limits_and_files_in_memory_count_as_room() {
        let second = available_in(&[
            ("proc/self/cgroup", "0::/app\n"),
            ("sys/fs/cgroup/app/memory.max", "1000000\n"),
            ("sys/fs/cgroup/app/memory.current", "900000\n"),
            ("sys/fs/cgroup/app/memory.stat", "anon 7\nfile 90\ninactive_file 40000\nactive_file 2000\n"),
        ]);
        let limited = |bytes| Available { bytes: most(bytes), source: Source::Group("/app".to_owned()) };
        assert_eq!(second, limited(142_000));
        assert!(second.to_string().ends_with("within the memory limit of control group /app"), "{second}");
        let first = available_in(&[
            ("proc/self/cgroup", "5:cpu,cpuacct:/app\n4:memory:/app\n0::/\n"),
            ("sys/fs/cgroup/memory/app/memory.limit_in_bytes", "1000000\n"),
            ("sys/fs/cgroup/memory/app/memory.usage_in_bytes", "900000\n"),
            ("sys/fs/cgroup/memory/app/memory.stat", "inactive_file 1\ntotal_inactive_file 5000\n"),
        ]);
        assert_eq!(first, limited(105_000));
    }

    #[test]
    fn what_there_is_at_all_does_not_shrink_while_memory_is_taken() {
        assert_eq!(total_under(system(&[]).path()), Some(4096 << 10));
        let of_group = |used: &str| {
            let files = [
                ("proc/self/cgroup", "0::/outer/inner\n"),
                ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
                ("sys/fs/cgroup/outer/memory.max", "1000000\n"),
                ("sys/fs/cgroup/outer/memory.current", used),
            ];
            total_under(system(&files).path())
        };
        assert_eq!((of_group("1\n"), of_group("999999\n")), (Some(1_000_000), Some(1_000_000)));
    }

    #[test]
    fn a_group_around_the_process_s_own_limits_too() {
        let around = available_in(&[
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
            ("sys/fs/cgroup/outer/inner/memory.current", "5\n"),
            ("sys/fs/cgroup/outer/memory.max", "1000000\n"),
            ("sys/fs/cgroup/outer/memory.current", "400000\n"),
        ]);
        assert_eq!(around.bytes, most(600_000));
        assert_eq!(around.source, Source::Group("/outer".to_owned()));
    }

    #[test]
    fn in_a_container_the_tree_s_root_is_the_process_s_own_group() {
        for path in ["/docker/0123", "/../../docker/0123", "/"] {
            let found = available_in(&[
                ("proc/self/cgroup", &format!("0::{path}\n")),
                ("sys/fs/cgroup/memory.max", "1000000\n"),
                ("sys/fs/cgroup/memory.current", "300000\n"),
            ]);
            assert_eq!(found.bytes, most(700_000), "{path}");
        }
    }

    #[test]
    fn a_group_without_a_limit_changes_nothing() {
        for limit in ["max", "9223372036854771712", "nonsense"] {
            let found = available_in(&[
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/memory.max", limit),
                ("sys/fs/cgroup/memory.current", "300000\n"),
            ]);
            assert_eq!(found.source, Source::Machine, "{limit}");
        }
    }

    #[test]
    fn a_group_that_is_full_leaves_nothing() {
        let found = available_in(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "300000\n"),
            ("sys/fs/cgroup/memory.current", "300001\n"),
        ]);
        assert_eq!(found.bytes, 0);
    }

    #[test]
    fn this_machine_has_less_than_there_can_be() {
        let available = available().expect("a Linux machine tells").bytes;
        assert!(available > 0 && available < 1 << 50);
    }
}
