//! Every command shown in the documents exists, with its subcommands and options.
//!
//! Other tests cover what commands do. Here each command is run with `--help` appended, which prints the help once all
//! arguments before it have been parsed. Placeholders, like `N` or `HOST:PORT`, are allowed to be refused.

// Promise API-12: The programs know the commands in README and docs.

use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

use fusee_testing::{finish, fusee, fusee_bench};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Program {
    Fusee,
    Bench,
}

/// A command in a document.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    program: Program,
    arguments: String,
}

/// The beginnings of commands in documents, each with the program that it starts.
const STARTS: [(&str, Program); 4] = [
    ("fusee ", Program::Fusee),
    ("cargo run --release -- ", Program::Fusee),
    ("fusee-bench ", Program::Bench),
    ("cargo run --release -p fusee-bench -- ", Program::Bench),
];
/// Text that ends a command.
const ENDS: [&str; 8] = [" #", " |", "  ", ";", " >", " <", " &", "..."];

#[test]
fn commands_in_documents_are_known() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    collect(&root.join("docs"), &mut files);
    let mut commands: Vec<(Shown, PathBuf)> = Vec::new();
    for file in files {
        let text = read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        commands.extend(shown(&text).into_iter().map(|command| (command, file.clone())));
    }
    commands.sort();
    commands.dedup_by(|one, other| one.0 == other.0);
    for program in [Program::Fusee, Program::Bench] {
        let count = commands.iter().filter(|(shown, _)| shown.program == program).count();
        assert!(count > 25, "only {count} commands of {program:?} are shown");
    }
    let mut unknown = Vec::new();
    for (Shown { program, arguments: command }, file) in commands {
        let arguments: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let output = finish(&mut match program {
            Program::Fusee => fusee(&arguments),
            Program::Bench => fusee_bench(&arguments),
        });
        let is_known = !output.stderr.contains("unexpected argument")
            && (!output.stderr.contains("unrecognized subcommand") || stands_for_others(&command));
        if !is_known {
            unknown.push(format!("{}: {program:?} {command}: {}", file.display(), output.stderr));
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

#[test]
fn commands_are_found_where_they_are_shown() {
    let text = "Text `fusee-bench\nycsb --keys 1`, `fusee-core`, and `FOO=1 fusee up`.\n\
        ```sh\n$ fusee get greeting   # text\nfusee put a b | cat\nother\n```\n    cargo run --release -- drain\n";
    let commands = [
        (Program::Fusee, "get greeting"),
        (Program::Fusee, "put a b"),
        (Program::Fusee, "drain"),
        (Program::Bench, "ycsb --keys 1"),
        (Program::Fusee, "up"),
    ];
    let commands =
        commands.map(|(program, arguments)| Shown { program, arguments: arguments.to_owned() });
    assert_eq!(shown(text), commands);
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display())) {
        let path = entry.expect("the directory can be read").path();
        match path.is_dir() {
            // Results and decisions describe the past, so their commands are allowed to be obsolete.
            true if path.ends_with("decisions") || path.ends_with("results") => {}
            true => collect(&path, files),
            false if path.extension().is_some_and(|extension| extension == "md") => {
                files.push(path)
            }
            false => {}
        }
    }
}

/// Returns whether the command contains a placeholder, like `NAME`.
fn stands_for_others(command: &str) -> bool {
    command.split_whitespace().any(|word| word.chars().all(|letter| letter.is_ascii_uppercase()))
}

/// Returns the commands in code blocks, then the commands in code within the text.
fn shown(text: &str) -> Vec<Shown> {
    let mut lines = Vec::new();
    let mut prose = String::new();
    let mut is_fenced = false;
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        match is_fenced || line.starts_with("    ") {
            true => lines.push(line),
            false if is_fence => prose.push('\n'),
            false => prose = prose + line.trim() + " ",
        }
    }
    let pieces = prose.split('`').skip(1).step_by(2);
    lines.into_iter().chain(pieces).filter_map(arguments).collect()
}

fn arguments(code: &str) -> Option<Shown> {
    let mut code = code.trim().trim_start_matches("$ ");
    // Assignments of environment variables before the command are skipped.
    while let Some((first, rest)) = code.split_once(' ')
        && first.contains('=')
        && first.starts_with(|letter: char| letter.is_ascii_uppercase())
    {
        code = rest;
    }
    let start = |(start, program): &(&str, Program)| Some((code.strip_prefix(*start)?, *program));
    let (mut rest, program) = STARTS.iter().find_map(start)?;
    for end in ENDS {
        rest = rest.split(end).next().expect("there is a first part");
    }
    let rest = rest.trim().trim_end_matches([',', '.']);
    (!rest.is_empty()).then(|| Shown { program, arguments: rest.to_owned() })
}
