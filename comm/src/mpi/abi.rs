//! What the libraries of MPI disagree about: what handles are, and which values names have.

use std::ffi::{c_int, c_void};

use device::DType;
use libloading::Library;

use crate::Reduce;

/// A handle, of whatever size.
pub(super) type Word = usize;

/// A handle as a library takes it.
pub(super) trait Handle: Copy + Send + Sync + 'static {
    fn from_word(word: Word) -> Self;
    fn word(self) -> Word;
}

/// MPICH's and its kin's.
impl Handle for c_int {
    fn from_word(word: Word) -> c_int {
        word as c_int
    }

    fn word(self) -> Word {
        self as u32 as Word
    }
}

/// A pointer, whose target is the library's: Open MPI's and the standard's.
impl Handle for Word {
    fn from_word(word: Word) -> Word {
        word
    }

    fn word(self) -> Word {
        self
    }
}

/// A family of libraries with the same binary interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    OpenMpi,
    Mpich,
    /// That of MPI 5.
    Standard,
}

/// The values of names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    pub(super) world: Word,
    pub(super) errors_return: Word,
    pub(super) byte: Word,
    /// F32, F64, I64, U8.
    numbers: [Word; 4],
    /// Sum, maximum, minimum, product.
    reductions: [Word; 4],
    pub(super) any_source: c_int,
    pub(super) undefined: c_int,
    pub(super) thread_serialized: c_int,
    pub(super) thread_multiple: c_int,
}

impl Family {
    /// The names under which its libraries are installed, the most common first.
    pub(super) fn files(self) -> &'static [&'static str] {
        match self {
            Family::OpenMpi => &["libmpi.so.40"],
            Family::Mpich => &["libmpich.so.12", "libmpi.so.12"],
            Family::Standard => &["libmpi_abi.so.0"],
        }
    }

    /// That of a library which was loaded from `file`.
    pub(super) fn of(library: &Library, file: &str) -> Family {
        // SAFETY: the symbol is looked up and never dereferenced, so its type does not matter.
        if unsafe { library.get::<*const c_void>(b"ompi_mpi_comm_world") }.is_ok() {
            Family::OpenMpi
        } else if file.contains("mpi_abi") {
            Family::Standard
        } else {
            Family::Mpich
        }
    }

    /// The values of its names in `library`; a name that it lacks.
    pub(super) fn names(self, library: &Library) -> Result<Names, &'static str> {
        let standard = Names {
            world: 0x101,
            errors_return: 0x142,
            byte: 0x247,
            numbers: [0x210, 0x214, 0x258, 0x241],
            reductions: [0x21, 0x23, 0x22, 0x24],
            any_source: -1,
            undefined: -32766,
            thread_serialized: 2048,
            thread_multiple: 4096,
        };
        let former = Names { thread_serialized: 2, thread_multiple: 3, ..standard };
        match self {
            Family::Standard => Ok(standard),
            Family::Mpich => Ok(Names {
                world: 0x4400_0000,
                errors_return: 0x5400_0001,
                byte: 0x4c00_010d,
                numbers: [0x4c00_040a, 0x4c00_080b, 0x4c00_083a, 0x4c00_013b],
                reductions: [0x5800_0003, 0x5800_0001, 0x5800_0002, 0x5800_0004],
                any_source: -2,
                ..former
            }),
            Family::OpenMpi => {
                let find = |name: &str| {
                    // SAFETY: only the symbol's address is used, which is Open MPI's handle. It is never dereferenced
                    // as this type.
                    let found = unsafe { library.get::<*const c_void>(name).ok()?.try_as_raw_ptr() };
                    found.map(|at| at as Word)
                };
                let at = |name| find(name).ok_or(name);
                Ok(Names {
                    world: at("ompi_mpi_comm_world")?,
                    errors_return: at("ompi_mpi_errors_return")?,
                    byte: at("ompi_mpi_byte")?,
                    numbers: [
                        at("ompi_mpi_float")?,
                        at("ompi_mpi_double")?,
                        at("ompi_mpi_int64_t")?,
                        at("ompi_mpi_uint8_t")?,
                    ],
                    reductions: [
                        at("ompi_mpi_op_sum")?,
                        at("ompi_mpi_op_max")?,
                        at("ompi_mpi_op_min")?,
                        at("ompi_mpi_op_prod")?,
                    ],
                    ..former
                })
            }
        }
    }
}

/// A library's type of elements and its reduction.
#[derive(Clone, Copy)]
pub(super) struct Reduction {
    pub(super) dtype: Word,
    pub(super) op: Word,
}

impl Names {
    /// The library's type of elements and reduction, if it has both and gives what ours gives but for the order. Its largest
    /// and smallest numbers do not say what becomes of NaN, and a mean is divided by us.
    pub(super) fn reduction(&self, dtype: DType, reduce: Reduce) -> Option<Reduction> {
        let number = match dtype {
            DType::F32 => 0,
            DType::F64 => 1,
            DType::I64 => 2,
            DType::U8 => 3,
            _ => return None,
        };
        let reduction = match reduce {
            Reduce::Sum | Reduce::Mean => 0,
            Reduce::Max if !dtype.is_float() => 1,
            Reduce::Min if !dtype.is_float() => 2,
            Reduce::Prod => 3,
            Reduce::Max | Reduce::Min => return None,
        };
        Some(Reduction { dtype: self.numbers[number], op: self.reductions[reduction] })
    }
}
