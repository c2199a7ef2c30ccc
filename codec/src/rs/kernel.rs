//! The instructions by which blocks are multiplied. They are chosen at run time, so the same binary runs on every CPU of its architecture.

use std::fmt;

/// A way to multiply blocks. A value exists only for instructions that this CPU has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Kernel(Instructions);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Instructions {
    /// `GF2P8AFFINEQB` on 64 bytes.
    #[cfg(target_arch = "x86_64")]
    GfniAvx512,
    /// `GF2P8AFFINEQB` on 32 bytes.
    #[cfg(target_arch = "x86_64")]
    GfniAvx2,
    /// Shuffles of 32 bytes.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Shuffles of 16 bytes.
    #[cfg(target_arch = "x86_64")]
    Ssse3,
    /// Table look-ups of 16 bytes.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The library's tables, byte by byte.
    Portable,
}

impl Instructions {
    /// The fastest first, as measured by `benches/kernels`.
    const ALL: &[Self] = &[
        #[cfg(target_arch = "x86_64")]
        Self::GfniAvx512,
        #[cfg(target_arch = "x86_64")]
        Self::GfniAvx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Ssse3,
        #[cfg(target_arch = "aarch64")]
        Self::Neon,
        Self::Portable,
    ];

    fn are_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::GfniAvx512 => {
                is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx512f")
            }
            #[cfg(target_arch = "x86_64")]
            Self::GfniAvx2 => is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => is_x86_feature_detected!("ssse3"),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Self::Portable => true,
        }
    }
}

impl Kernel {
    /// The fastest kernel of this CPU.
    pub fn best() -> Self {
        Self::all().next().unwrap_or(Self(Instructions::Portable))
    }

    /// All kernels that this CPU can run, fastest first.
    pub fn all() -> impl Iterator<Item = Self> {
        let available = Instructions::ALL.iter().filter(|all| all.are_available());
        available.map(|instructions| Self(*instructions))
    }

    /// The kernel's name, for reports.
    pub const fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Instructions::GfniAvx512 => "gfni-avx512",
            #[cfg(target_arch = "x86_64")]
            Instructions::GfniAvx2 => "gfni-avx2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Ssse3 => "ssse3",
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => "neon",
            Instructions::Portable => "portable",
        }
    }

    pub(super) const fn instructions(self) -> Instructions {
        self.0
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_portable_kernel_is_always_there() {
        assert!(Kernel::all().any(|kernel| kernel == Kernel(Instructions::Portable)));
        assert_eq!(Kernel::all().next(), Some(Kernel::best()));
    }
}
