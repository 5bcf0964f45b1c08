//! `streamgrad info`: devices, and why one is missing.

use streamgrad::Device;
use streamgrad::device::environment;
use streamgrad::profile::Table;

use super::failure::Failure;
use super::output::Printer;

const THREADS: &str = "STREAMGRAD_THREADS";

pub(super) fn run(printer: &mut Printer) -> Result<bool, Failure> {
    let cpu = Device::cpu();
    let mut table = Table::new(2);
    table.row(["streamgrad", env!("CARGO_PKG_VERSION")]);
    table.row(["device cpu", &cpu_line(&cpu)]);
    table.row(["instruction sets", &instruction_sets().join(", ")]);
    let alignment = cpu.memory_driver().alignment();
    table.row(["memory", &format!("the system's allocator, ranges aligned to {alignment} bytes")]);
    let threads = match environment::threads() {
        Ok(None) => "not set: one thread a core".to_owned(),
        Ok(Some(threads)) => format!("{threads}"),
        Err(error) => error.to_string(),
    };
    table.row([THREADS, &threads]);
    match Device::cuda(0) {
        Ok(cuda) => {
            table.row(["device cuda:0", &cuda.description()]);
            let convolutions =
                streamgrad::kernels::convolutions(&cuda).unwrap_or_else(|error| error.to_string());
            table.row(["convolutions", &convolutions]);
        }
        Err(error) => table.row(["device cuda:0", &error.to_string()]),
    }
    table.row(["device auto", &Device::best().name()]);
    for workload in workloads::ALL {
        table.row([&format!("workload {}", workload.name()), workload.info().about]);
    }
    printer.text(&table)?;
    Ok(environment::check().is_ok())
}

fn cpu_line(cpu: &Device) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores, kernels split over up to {} threads", cpu.threads())
}

/// A run does not begin with a variable that makes no sense.
pub(super) fn check_environment() -> Result<(), Failure> {
    environment::check().map_err(|error| Failure::Usage(error.to_string()))
}

/// What kernels may use of the processor.
fn instruction_sets() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let known = [
        ("sse4.2", std::arch::is_x86_feature_detected!("sse4.2")),
        ("avx", std::arch::is_x86_feature_detected!("avx")),
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ("avx512bw", std::arch::is_x86_feature_detected!("avx512bw")),
        ("avx512bf16", std::arch::is_x86_feature_detected!("avx512bf16")),
    ];
    #[cfg(target_arch = "aarch64")]
    let known = [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("fp16", std::arch::is_aarch64_feature_detected!("fp16")),
        ("sve", std::arch::is_aarch64_feature_detected!("sve")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let known: [(&str, bool); 0] = [];
    let found: Vec<_> = known.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect();
    if found.is_empty() { vec!["none known"] } else { found }
}
