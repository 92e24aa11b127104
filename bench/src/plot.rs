//! Pictures as SVG: latency by percentile, and bars with their intervals. Readable on light and on dark ground.

use crate::figure::short;
use crate::statistics::Estimate;
use hdrhistogram::Histogram;
use std::fmt::Write;

/// Colours by class, so that a page can hold the pictures without repeating them. Eleven servers can be told apart.
pub const STYLE: &str = "\
.ink{fill:#222}.axis{stroke:#999}.grid{stroke:#e4e4e4}text{font:12px sans-serif}\
.line{fill:none;stroke-width:2}\
@media(prefers-color-scheme:dark){.ink{fill:#ddd}.axis{stroke:#777}.grid{stroke:#333}}";

/// One colour a server, of medium lightness for both grounds; ours is the first.
const COLOURS: [&str; 11] = [
    "#e6461f", "#2f7ed8", "#1f9e4d", "#9b59d0", "#c79400", "#159ea8", "#d6569b", "#7a8c2f", "#8a6a52",
    "#6b7fa8", "#888888",
];

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;

/// Latency (us, logarithmic) over percentile (logarithmic in what is left above it), one line a server. `None` when
/// there is nothing to draw.
pub fn percentiles(lines: &[(String, Histogram<u64>)]) -> Option<String> {
    let samples = lines.iter().map(|(_, histogram)| histogram.len()).max().filter(|most| *most > 0)?;
    let decades = (samples as f64).log10().floor().clamp(2.0, 5.0);
    let every: Vec<Vec<(f64, f64)>> = lines.iter().map(|(_, histogram)| points(histogram, decades)).collect();
    let values = || every.iter().flatten().map(|(_, us)| *us);
    let low = values().fold(f64::INFINITY, f64::min).log10().floor();
    let high = values().fold(1.0, f64::max).log10().ceil().max(low + 1.0);
    let x = |nines: f64| LEFT + nines / decades * (WIDTH - LEFT - RIGHT);
    let y = |us: f64| HEIGHT - BOTTOM - (us.log10() - low) / (high - low) * (HEIGHT - TOP - BOTTOM);

    let mut svg = open(HEIGHT);
    for exponent in low as i32..=high as i32 {
        let value = 10_f64.powi(exponent);
        grid(&mut svg, (LEFT, y(value)), (WIDTH - RIGHT, y(value)));
        label(&mut svg, LEFT - 6.0, y(value) + 4.0, "end", &micros(value));
    }
    for nines in 0..=decades as i32 {
        let at = x(f64::from(nines));
        grid(&mut svg, (at, TOP), (at, HEIGHT - BOTTOM));
        label(&mut svg, at, HEIGHT - BOTTOM + 18.0, "middle", &percentile(nines));
    }
    label(&mut svg, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0, "middle", "percentile");
    for (place, ((name, _), points)) in lines.iter().zip(&every).enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let path: Vec<String> =
            points.iter().map(|(nines, us)| format!("{:.1},{:.1}", x(*nines), y(*us))).collect();
        let _ = writeln!(
            svg,
            "<polyline class=\"line\" stroke=\"{colour}\" points=\"{}\"><title>{}</title></polyline>",
            path.join(" "),
            escape(name)
        );
        let at = TOP + 14.0 + 18.0 * place as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{}\" y=\"{:.1}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>",
            WIDTH - RIGHT + 14.0,
            at - 6.0
        );
        label(&mut svg, WIDTH - RIGHT + 32.0, at, "start", name);
    }
    svg += "</svg>\n";
    Some(svg)
}

/// Bars from 0 with a whisker over the interval, or over the extremes where there is none.
pub fn bars(bars: &[(String, Estimate)]) -> Option<String> {
    let reach = |estimate: &Estimate| estimate.interval.unwrap_or((estimate.least, estimate.most));
    let most = bars.iter().map(|(_, estimate)| reach(estimate).1.max(estimate.median)).fold(0.0, f64::max);
    if most <= 0.0 {
        return None;
    }
    let left = 130.0;
    let x = |value: f64| left + value / most * (WIDTH - left - 90.0);
    let mut svg = open(TOP + 26.0 * bars.len() as f64 + 8.0);
    for (place, (name, estimate)) in bars.iter().enumerate() {
        let top = TOP + 26.0 * place as f64;
        let colour = COLOURS[place % COLOURS.len()];
        label(&mut svg, left - 8.0, top + 13.0, "end", name);
        let width = x(estimate.median) - left;
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"18\" fill=\"{colour}\"/>"
        );
        let (low, high) = reach(estimate);
        let middle = top + 9.0;
        let _ = writeln!(
            svg,
            "<line class=\"axis\" stroke-width=\"2\" x1=\"{:.1}\" y1=\"{middle:.1}\" x2=\"{:.1}\" y2=\"{middle:.1}\"/>",
            x(low),
            x(high)
        );
        label(&mut svg, x(high.max(estimate.median)) + 6.0, top + 13.0, "start", &short(estimate.median));
    }
    svg += "</svg>\n";
    Some(svg)
}

/// A picture as a file of its own.
pub fn alone(svg: &str) -> String {
    svg.replacen('>', &format!("><style>{STYLE}</style>"), 1)
}

/// Text that may stand in XML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// (nines, us): 0 nines is the minimum, 1 the 90th percentile, 2 the 99th.
fn points(histogram: &Histogram<u64>, decades: f64) -> Vec<(f64, f64)> {
    const STEPS: u32 = 24;
    let most = (histogram.len().max(1) as f64).log10().min(decades);
    let steps = (decades * f64::from(STEPS)) as u32;
    let nines = (0..=steps).map(|step| f64::from(step) / f64::from(STEPS)).filter(|nines| *nines <= most);
    let us = |nines: f64| histogram.value_at_quantile(1.0 - 10_f64.powf(-nines)) as f64 / 1000.0;
    nines.map(|nines| (nines, us(nines).max(0.1))).collect()
}

fn percentile(nines: i32) -> String {
    match nines {
        0 => "0".to_owned(),
        1 => "90".to_owned(),
        2 => "99".to_owned(),
        more => format!("99.{}", "9".repeat(more as usize - 2)),
    }
}

fn micros(us: f64) -> String {
    match us {
        seconds if seconds >= 1e6 => format!("{} s", seconds / 1e6),
        millis if millis >= 1e3 => format!("{} ms", millis / 1e3),
        _ => format!("{us} us"),
    }
}

fn open(height: f64) -> String {
    format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n")
}

fn grid(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let (x1, y1, x2, y2) = (from.0, from.1, to.0, to.1);
    let _ =
        writeln!(svg, "<line class=\"grid\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

fn label(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = escape(text);
    let _ =
        writeln!(svg, "<text class=\"ink\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;
    use crate::statistics::estimate;

    /// Well formed enough for a reader of XML: every element that opens closes.
    fn balanced(svg: &str) -> bool {
        let opened = svg.matches('<').count() - 2 * svg.matches("</").count() - svg.matches("/>").count();
        opened == 0
    }

    #[test]
    fn each_server_has_a_line_and_a_name() {
        let results = example::results();
        let lines: Vec<_> = ["seqcast", "a<b"]
            .map(|name| (name.to_owned(), results.latencies("latency-1000x100-r100", "ws").unwrap().unwrap()))
            .into();
        let svg = percentiles(&lines).expect("there are latencies");
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a&lt;b") && svg.contains(">99.9</text>") && balanced(&svg), "{svg}");
        assert_eq!(percentiles(&[]), None);
    }

    #[test]
    fn percentiles_rise() {
        let results = example::results();
        let histogram = results.latencies("latency-1000x100-r100", "ws").unwrap().unwrap();
        let points = points(&histogram, 3.0);
        assert!(points.len() > 50 && points.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{points:?}");
        let last = points.last().expect("many");
        assert!((last.0 - 3.0).abs() < 1e-9 && last.1 > 8_900.0, "the 99.9th of 1 to 9,000 us: {last:?}");
    }

    #[test]
    fn a_picture_alone_brings_its_colours() {
        let bars = bars(&[("ws".to_owned(), estimate(&[1.0, 2.0, 3.0]).expect("three"))]).expect("not empty");
        assert!(balanced(&bars) && alone(&bars).contains("<style>"), "{bars}");
    }
}
