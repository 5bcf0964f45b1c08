//! A network learns the prices of houses from a CSV file.
//!
//!     cargo run --release --example csv_regression

use std::path::Path;

use streamgrad::data::{Column, CsvOptions};
use streamgrad::models::random::SplitMix;
use streamgrad::models::{file, random_split};
use streamgrad::{Result, prelude::*};

/// Writes a table of invented houses, with prices in hundred thousands.
fn write_table(path: &Path) -> Result<()> {
    let mut random = SplitMix(7);
    let mut table = String::from("area,rooms,price,age\n");
    for _ in 0..1000 {
        let (area, rooms, age) = (40 + random.below(160), 1 + random.below(6), random.below(80));
        let price = area as f64 * (0.03 - 0.0002 * age as f64) + 0.1 * rooms as f64;
        let price = price * (0.95 + 0.001 * random.below(100) as f64);
        table += &format!("{area},{rooms},{price:.2},{age}\n");
    }
    file::write(path, table.as_bytes())
}

/// Trains on the table at `path` for `epochs` epochs, and returns the R² of the prices.
pub(crate) fn train(path: &Path, epochs: u64) -> Result<f32> {
    let dev = Device::best();
    streamgrad::seed(7);
    write_table(path)?;
    let options = CsvOptions { label: Column::Name("price"), ..CsvOptions::default() };
    let [train, test] = random_split(TensorDataset::read_csv(path, &options)?, [0.8, 0.2], 7)?;
    let options = LoaderOptions { batch: 32, seed: 7, device: dev.clone(), ..LoaderOptions::default() };
    let loader = DataLoader::new(train, options)?;
    let test = test.batch(&(0..test.len()).collect::<Vec<_>>(), 0, &dev)?;
    // The first layer standardises the columns.
    let hidden = sequential![BatchNorm1d::new(3, &dev)?, Linear::new(3, 64, &dev)?, Relu];
    let model = hidden.push(Linear::new(64, 1, &dev)?);
    let mut adam = Adam::new(model.parameters(), 1e-2)?;
    let mut explained = 0.0;
    for epoch in 0..epochs {
        model.set_training(true);
        for batch in loader.epoch(epoch) {
            let Batch { inputs, labels, .. } = batch?;
            let prices = model.forward(&inputs.into())?.squeeze(1)?;
            adam.step(&mse(&prices, &labels.into())?.backward()?)?;
        }
        model.set_training(false);
        let prices = no_grad(|| model.forward(&test.input())?.squeeze(1))?;
        let error = mse(&prices, &test.labels.clone().into())?.item::<f32>()?;
        explained = 1.0 - error / test.labels.var(&[], 0.0, false)?.item::<f32>()?;
        println!("epoch {epoch:2}: {:.1} % of the variance explained", 100.0 * explained);
    }
    Ok(explained)
}

fn main() -> Result<()> {
    train(&std::env::temp_dir().join("streamgrad-houses.csv"), 20).map(drop)
}
