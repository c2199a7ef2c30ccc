//! What the image of a process needs of a machine: the kind of processor, its features, the kernel. These
//! are sealed labels of the checkpoint, and are compared before a restart.

use std::fs;

use codec::labels::Labels;

/// Label with the kind of processor, such as `x86_64`.
pub(super) const MACHINE: &str = "ckpt.machine";
/// Label with the kernel's release.
pub(super) const KERNEL: &str = "ckpt.kernel";
/// Label with the features of the processor.
pub(super) const CPU: &str = "ckpt.cpu";

/// Longest list of features in a label, bytes: all labels together have at most 4096.
const CPU_BYTES_MAX: usize = 3000;

/// The properties of a machine on which an image of a process can depend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostKind {
    machine: String,
    kernel: String,
    features: Vec<String>,
}

impl HostKind {
    /// The properties of this machine.
    pub(super) fn of_this() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let line = info.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            matches!(key.trim(), "flags" | "Features").then_some(value)
        });
        let features = line.unwrap_or_default().split_whitespace();
        Self {
            machine: std::env::consts::ARCH.to_owned(),
            kernel: kernel.trim().to_owned(),
            features: features.map(str::to_owned).collect(),
        }
    }

    /// The labels for a checkpoint from this machine.
    pub(super) fn labels(&self) -> Vec<(String, String)> {
        let mut features = String::new();
        for feature in &self.features {
            if features.len() + feature.len() < CPU_BYTES_MAX {
                features.push_str(feature);
                features.push(' ');
            }
        }
        vec![
            (MACHINE.to_owned(), self.machine.clone()),
            (KERNEL.to_owned(), self.kernel.clone()),
            (CPU.to_owned(), features.trim_end().to_owned()),
        ]
    }

    /// What this machine lacks of the machine with these labels; `None` if an image from there can run
    /// here. The kernel is not compared: what an older kernel lacks is known only after the restart
    /// fails.
    pub(super) fn lacks(&self, of: &Labels) -> Option<String> {
        let machine = of.get(MACHINE)?;
        if machine != self.machine {
            return Some(format!(
                "it was saved on {machine}, and this is {}",
                self.machine
            ));
        }
        let wanted = of.get(CPU).unwrap_or_default().split_whitespace();
        let missing: Vec<&str> = wanted
            .filter(|feature| !self.features.iter().any(|have| have == feature))
            .collect();
        let kernel = of.get(KERNEL).unwrap_or_default();
        (!missing.is_empty()).then(|| {
            format!(
                "this processor lacks {} (saved under Linux {kernel}; this is {})",
                missing.join(" "),
                self.kernel
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_fewer_features_is_refused_and_one_with_more_is_not() {
        let kind = |features: &[&str]| HostKind {
            machine: "x86_64".into(),
            kernel: "6.1".into(),
            features: features.iter().map(|one| (*one).to_owned()).collect(),
        };
        let labels = Labels::new(kind(&["fpu", "avx2"]).labels()).unwrap();
        assert_eq!(kind(&["fpu", "avx2", "avx512f"]).lacks(&labels), None);
        let lacks = kind(&["fpu"]).lacks(&labels).unwrap();
        assert!(lacks.contains("avx2") && !lacks.contains("fpu"), "{lacks}");
        let other = HostKind {
            machine: "aarch64".into(),
            ..kind(&["fpu", "avx2"])
        };
        assert!(
            other
                .lacks(&labels)
                .is_some_and(|why| why.contains("aarch64"))
        );
        // A checkpoint of files has no such labels, and depends on no machine.
        assert_eq!(kind(&[]).lacks(&Labels::default()), None);
    }

    #[test]
    fn this_machine_has_a_kind_that_fits_into_labels_and_runs_its_own_images() {
        let here = HostKind::of_this();
        let labels = Labels::new(here.labels()).unwrap();
        assert!(!here.machine.is_empty() && !here.kernel.is_empty());
        assert_eq!(here.lacks(&labels), None);
    }
}
