//! What launchers say to the processes that they start.

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use super::Rendezvous;
use super::greeting::MAX_TOKEN;
use crate::Result;
use crate::failure::{expect_available, unavailable};

/// One process among those that a launcher has started.
#[derive(Clone, PartialEq, Eq)]
pub struct Launch {
    /// This process, from 0 on.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// This process among those of its machine: which GPU is its.
    pub local_rank: usize,
    /// Whether MPI's own launcher has started it, so that MPI's library knows its ranks.
    pub by_mpi: bool,
    /// Host and port where rank 0 listens, if the launcher says.
    pub address: Option<(String, u16)>,
    token: Option<String>,
    /// The descriptor of a socket that listens at `address`, which rank 0 has from `streamgrad launch`.
    listener: Option<i32>,
}

/// The names that a launcher gives to what it says.
pub(super) struct RankVariables {
    pub(super) rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    by_mpi: bool,
}

#[derive::located]
impl Launch {
    /// What the environment says: that of `streamgrad launch` and `torchrun` (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`), of Open MPI
    /// (`OMPI_COMM_WORLD_RANK`, ..), of MPICH (`PMI_RANK`, ..) or of Slurm (`SLURM_PROCID`, ..), the first of which that is
    /// there. `None` if none is. Rank 0 listens at `MASTER_ADDR` and `MASTER_PORT` (the next port if `torchrun` has a store at
    /// that one), or at `SLURM_LAUNCH_NODE_IPADDR`.
    ///
    /// # Errors
    /// `CommUnavailable` for a variable that is missing beside others, is no number, or contradicts another; it names the
    /// variable and its value.
    pub fn from_env() -> Result<Option<Launch>> {
        Launch::read(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    pub(super) fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
        let there = |names: &&RankVariables| {
            get(names.rank).is_some() || (!names.by_slurm() && get(names.size).is_some())
        };
        let Some(names) = RankVariables::ALL.iter().find(there) else { return Ok(None) };
        let rank: usize = needed(get, names.rank, names.size)?;
        let size: usize = needed(get, names.size, names.rank)?;
        let reason = format_args!("{}={rank} is no rank of {}={size}", names.rank, names.size);
        expect_available(rank < size, reason)?;
        let local_rank = number(get, names.local_rank)?.unwrap_or(rank);
        let reason = format_args!("{}={local_rank} is more than {}={rank}", names.local_rank, names.rank);
        expect_available(local_rank <= rank, reason)?;
        let address = address(get)?;
        let token = token(get)?;
        let listener = number(get, "STREAMGRAD_LISTENER")?;
        // As `srun --mpi=pmix` does.
        let by_mpi = names.by_mpi || (names.by_slurm() && get("PMIX_RANK").is_some());
        Ok(Some(Launch { rank, size, local_rank, by_mpi, address, token, listener }))
    }

    /// Meets the other processes, over TCP: rank 0 listens where [`address`](Self::address) says, and nowhere else. They show
    /// each other the token of `STREAMGRAD_TOKEN`, or of the file `STREAMGRAD_TOKEN_FILE`, which must be there unless the address
    /// is of this machine only. Where `STREAMGRAD_LISTENER` is the descriptor of a socket that listens there already, as of
    /// `streamgrad launch`, rank 0 uses that.
    ///
    /// # Errors
    /// `CommUnavailable` without an address, or without a token; those of [`Rendezvous::meet`].
    pub fn meet(&self, timeout: Duration) -> Result<Rendezvous> {
        let Some((host, port)) = &self.address else {
            return Err(unavailable(
                "MASTER_ADDR and MASTER_PORT are not set: the ranks have no place to meet",
            ));
        };
        let address = (host.as_str(), *port)
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.next())
            .ok_or_else(|| unavailable(format_args!("MASTER_ADDR={host:?} is no address")))?;
        let token = self.token.as_deref().unwrap_or_default();
        let reason =
            format_args!("ranks that meet at {address} need a STREAMGRAD_TOKEN, the same on all of them");
        expect_available(!token.is_empty() || address.ip().is_loopback(), reason)?;
        match self.listener.filter(|_| self.rank == 0).and_then(|listener| inherited(listener, address)) {
            Some(listener) => Rendezvous::meet_on(listener, self.size, token, timeout),
            None => Rendezvous::meet(address, self.rank, self.size, token, timeout),
        }
    }
}

impl RankVariables {
    /// The innermost launcher first: within an allocation of Slurm, `mpirun` and `torchrun` count for themselves.
    pub(super) const ALL: [RankVariables; 4] = [
        RankVariables { rank: "RANK", size: "WORLD_SIZE", local_rank: "LOCAL_RANK", by_mpi: false },
        RankVariables {
            rank: "OMPI_COMM_WORLD_RANK",
            size: "OMPI_COMM_WORLD_SIZE",
            local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
            by_mpi: true,
        },
        RankVariables { rank: "PMI_RANK", size: "PMI_SIZE", local_rank: "MPI_LOCALRANKID", by_mpi: true },
        RankVariables {
            rank: "SLURM_PROCID",
            size: "SLURM_NTASKS",
            local_rank: "SLURM_LOCALID",
            by_mpi: false,
        },
    ];

    /// Slurm sets the size for a shell, too, which is no rank.
    fn by_slurm(&self) -> bool {
        self.rank == "SLURM_PROCID"
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the token.
        write!(f, "Launch(rank {} of {}, {} on its machine)", self.rank, self.size, self.local_rank)
    }
}

fn needed(get: &dyn Fn(&str) -> Option<String>, name: &str, other: &str) -> Result<usize> {
    number(get, name)?.ok_or_else(|| {
        let value = get(other).unwrap_or_default();
        unavailable(format_args!("{name} is not set, but {other}={value:?} is"))
    })
}

fn number<N: std::str::FromStr>(get: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<Option<N>> {
    let Some(value) = get(name) else { return Ok(None) };
    let number = value.trim().parse();
    number.map(Some).map_err(|_| unavailable(format_args!("{name}={value:?} is no number in range")))
}

fn address(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<(String, u16)>> {
    let Some(host) = get("MASTER_ADDR").or_else(|| get("SLURM_LAUNCH_NODE_IPADDR")) else { return Ok(None) };
    let Some(port) = number::<u16>(get, "MASTER_PORT")? else { return Ok(None) };
    // Where torchrun's own store is at that port, ours is at the next.
    let taken = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
    let port = port.checked_add(u16::from(taken)).filter(|&port| port > 0);
    let port = port.ok_or_else(|| {
        let value = get("MASTER_PORT").unwrap_or_default();
        unavailable(format_args!("MASTER_PORT={value:?} leaves no port to meet at"))
    })?;
    Ok(Some((host, port)))
}

fn token(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<String>> {
    let Some(path) = get("STREAMGRAD_TOKEN_FILE") else { return Ok(get("STREAMGRAD_TOKEN")) };
    let refused = |reason: &dyn fmt::Display| unavailable(format_args!("STREAMGRAD_TOKEN_FILE={reason}"));
    let bytes = device::file::read_if(&path, check_token).map_err(|error| refused(&error))?;
    let token = std::str::from_utf8(&bytes).map_err(|error| refused(&format_args!("{path}: {error}")))?;
    Ok(Some(token.trim().to_owned()))
}

/// That a file has no more bytes than a token, and that nobody but its owner can read or change it.
fn check_token(found: &Metadata) -> io::Result<()> {
    // White space around it is not part of it.
    let most = 2 * MAX_TOKEN as u64;
    if found.len() == 0 {
        return Err(io::Error::other("is empty"));
    }
    if found.len() > most {
        return Err(io::Error::other(format!("has more than {most} bytes")));
    }
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::MetadataExt::mode(found) & 0o777;
        if mode & 0o066 != 0 {
            return Err(io::Error::other(format!(
                "has mode {mode:03o}, so that others than its owner can read or change it: use 600"
            )));
        }
    }
    Ok(())
}

/// The socket that a launcher has left open for this process; `None` if the descriptor is not one that listens at `address`.
#[cfg(unix)]
fn inherited(descriptor: i32, address: SocketAddr) -> Option<TcpListener> {
    use std::os::fd::{FromRawFd, OwnedFd};

    // SAFETY: `fcntl` accepts any number and fails for one that is no descriptor. The duplicate is new, so nothing
    // else owns or closes it.
    let duplicate = unsafe {
        match libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) {
            -1 => return None,
            duplicate => OwnedFd::from_raw_fd(duplicate),
        }
    };
    let listener = TcpListener::from(duplicate);
    if listener.local_addr().ok() != Some(address) {
        return None;
    }
    // SAFETY: `fcntl` accepts any number and only sets a flag. The descriptor is the socket at `address`, which child
    // processes do not need.
    unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    Some(listener)
}

/// `streamgrad launch`, which leaves it, is for Unix.
#[cfg(not(unix))]
fn inherited(_: i32, _: SocketAddr) -> Option<TcpListener> {
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Launch>> {
        let get =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Launch::read(&get)
    }

    fn refused(variables: &[(&str, &str)]) -> String {
        read(variables).unwrap_err().to_string()
    }

    #[test]
    fn each_launcher_is_understood() {
        let torchrun = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "node"),
            ("MASTER_PORT", "29500"),
        ];
        let launch = read(&torchrun).unwrap().unwrap();
        assert_eq!((launch.rank, launch.size, launch.local_rank, launch.by_mpi), (3, 4, 1, false));
        assert_eq!(launch.address, Some(("node".into(), 29500)));
        let with_store = [&torchrun[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(read(&with_store).unwrap().unwrap().address, Some(("node".into(), 29501)));
        let openmpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ];
        let launch = read(&openmpi).unwrap().unwrap();
        assert_eq!((launch.rank, launch.size, launch.local_rank, launch.by_mpi), (1, 2, 0, true));
        assert!(read(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]).unwrap().unwrap().by_mpi);
        let slurm = [
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"),
            ("MASTER_PORT", "1"),
        ];
        assert_eq!(read(&slurm).unwrap().unwrap().address, Some(("10.0.0.1".into(), 1)));
        assert!(!read(&slurm).unwrap().unwrap().by_mpi);
        assert!(read(&[&slurm[..], &[("PMIX_RANK", "5")]].concat()).unwrap().unwrap().by_mpi);
        // The innermost counts.
        assert_eq!(read(&[&slurm[..], &openmpi].concat()).unwrap().unwrap().size, 2);
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&[("SLURM_NTASKS", "8")]).unwrap().is_none());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (variables, names) in [
            (&[("RANK", "1")][..], "WORLD_SIZE is not set, but RANK=\"1\""),
            (&[("WORLD_SIZE", "2")], "RANK is not set, but WORLD_SIZE=\"2\""),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK=2 is no rank of WORLD_SIZE=2"),
            (&[("RANK", "-1"), ("WORLD_SIZE", "2")], "RANK=\"-1\""),
            (&[("RANK", "0"), ("WORLD_SIZE", "two")], "WORLD_SIZE=\"two\""),
            (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")], "LOCAL_RANK=1"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "70000")],
                "MASTER_PORT=\"70000\"",
            ),
        ] {
            let message = refused(variables);
            assert!(message.contains(names), "{message}");
        }
    }

    #[test]
    fn another_machine_needs_a_token_which_no_debug_output_shows() {
        let variables =
            [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.1"), ("MASTER_PORT", "9")];
        let launch = read(&variables).unwrap().unwrap();
        let error = launch.meet(Duration::from_millis(1)).unwrap_err().to_string();
        assert!(error.contains("STREAMGRAD_TOKEN"), "{error}");
        let launch = read(&[&variables[..], &[("STREAMGRAD_TOKEN", "hidden")]].concat()).unwrap().unwrap();
        assert!(!format!("{launch:?}").contains("hidden"));
    }

    /// What others can read is no secret, and what has no end is no token.
    #[test]
    fn a_token_file_is_its_owners_alone_and_short() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("streamgrad-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let token = |path: &str| {
            let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("STREAMGRAD_TOKEN_FILE", path)];
            read(&variables).map(|launch| launch.unwrap().token.unwrap())
        };
        let file = path("token");
        std::fs::write(&file, " secret\n").unwrap();
        for (mode, is_refused) in
            [(0o600, false), (0o400, false), (0o640, true), (0o604, true), (0o620, true)]
        {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            match token(&file) {
                Ok(token) => assert!(token == "secret" && !is_refused, "{mode:o}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(is_refused && error.contains(&format!("mode {mode:o}")), "{mode:o}: {error}");
                    assert!(!error.contains("secret"));
                }
            }
        }
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&file, [b'x'; 1000]).unwrap();
        let fifo = path("fifo");
        assert!(std::process::Command::new("mkfifo").args(["-m", "600", &fifo]).status().unwrap().success());
        for (path, reason) in [
            (&*file, "more than 512 bytes"),
            (&*fifo, "not a regular file"),
            ("/dev/zero", "not a regular file"),
        ] {
            let error = token(path).unwrap_err().to_string();
            assert!(error.contains(reason), "{path}: {error}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
