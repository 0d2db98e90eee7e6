//! Does all cases of tests/conformance through the crate `quire`. That folder's README.md says what they are.

mod options;
mod steps;

use quire::Error;
use quire_tests::json::Json;
use quire_tests::{runtime, source};
use steps::Case;

/// Whether a value is what the suite wants.
fn agrees(found: &Json, wanted: &Json) -> bool {
    match (found, wanted) {
        (Json::Integer(_) | Json::Number(_), Json::Number(wanted)) => {
            let found = found.number();
            (found - wanted).abs() <= 1e-4 * found.abs().max(wanted.abs()).max(1.0)
        }
        (Json::Array(found), Json::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| agrees(found, wanted))
        }
        (found, wanted) => found == wanted,
    }
}

/// What is wrong with a step's result.
fn complaint(step: &Json, result: Result<Json, Error>) -> Option<String> {
    let result = match (result, step.get("error")) {
        (Ok(_), Some(wanted)) => return Some(format!("succeeded; {wanted:?} expected")),
        (Err(error), None) => return Some(format!("{error}")),
        (Err(error), Some(wanted)) => {
            let offset = error.offset().map_or(-1, |offset| offset as i64);
            let good = wanted.at("status").text() == error.status().name()
                && wanted.get("offset").map_or(true, |wanted| wanted.integer() == offset)
                && wanted.get("message").map_or(true, |part| error.message().contains(part.text()));
            return (!good).then(|| format!("{error:?}; {wanted:?} expected"));
        }
        (Ok(result), None) => result,
    };
    let wanted = step.get("expect").map_or(&[][..], Json::entries);
    let wrong = wanted.iter().find(|(key, value)| !result.get(key).is_some_and(|found| agrees(found, value)));
    wrong.map(|(key, value)| format!("{key} is {:?}; {value:?} expected", result.get(key)))
}

#[test]
fn all_files() {
    let mut files: Vec<_> =
        std::fs::read_dir(source("tests/conformance")).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    let (mut n_cases, mut wrong) = (0, Vec::new());
    for path in files {
        let file = Json::parse(&std::fs::read_to_string(&path).unwrap());
        let model = runtime(1).load_model(source(file.at("model").text())).unwrap();
        for described in file.at("cases").items() {
            n_cases += 1;
            let mut case = Case::new(&model);
            for step in described.at("steps").items() {
                if let Some(complaint) = complaint(step, case.step(step)) {
                    let (path, name) = (path.display(), described.at("name").text());
                    wrong.push(format!("{path}, {name}, {step:?}: {complaint}"));
                }
            }
        }
    }
    println!("{n_cases} cases");
    assert!(n_cases > 20, "{n_cases} cases");
    assert!(wrong.is_empty(), "{} steps are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
