//! `fusee completions` and `fusee man`: files that a package ships beside the program.

use clap::CommandFactory;
use fusee_cli::failure::Failure;
use fusee_cli::manual::{self, CompletionsArgs, ManArgs, Shell};
use fusee_cli::output;

use crate::cli::FuseeCli;

/// Prints a script that completes commands.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let script = manual::completions(args.shell, FuseeCli::command());
    output::text(&with_nodes(args.shell, &script))
}

/// Writes a manual page for every command.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    manual::man(FuseeCli::command(), args)
}

/// Extends a completion script: after `fusee drain` it asks the master for the names of memory nodes. The master is the
/// one that the command line or the environment names. If it does not answer within a second, no name is completed.
fn with_nodes(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => {
            script.replace("complete -F _fusee ", "complete -F _fusee_or_node ")
                + NODES
                + BASH_NODES
        }
        Shell::Zsh => {
            let start = ":node -- The memory node";
            let end = ":_default'";
            let Some(at) = script.find(start) else { return script.to_owned() };
            let (before, after) = script.split_at(at);
            let node = after.replacen(end, ":{compadd -- $(_fusee_nodes $words)}'", 1);
            // The functions have to come before the last lines of the script, which call one of them.
            let first = node.rfind("if [ \"$funcstack[1]\"").unwrap_or(node.len());
            let (functions, call) = node.split_at(first);
            format!("{before}{functions}{NODES}\n{call}")
        }
        Shell::Fish => format!("{script}{FISH_NODES}"),
        _ => script.to_owned(),
    }
}

/// A shell function that prints the names of the memory nodes. Its arguments are the words of a command line.
const NODES: &str = r#"
_fusee_nodes() {
    local asked=(fusee status --json) word previous=
    for word in "$@"; do
        case $previous in
            --master|--secret|--tls-ca|--tls-cert|--tls-key) asked+=("$previous" "$word") ;;
        esac
        case $word in
            --master=*|--secret=*|--tls-ca=*|--tls-cert=*|--tls-key=*) asked+=("$word") ;;
        esac
        previous=$word
    done
    timeout 1 "${asked[@]}" 2>/dev/null | grep -o '"node": *"mn[0-9]*"' | grep -o 'mn[0-9]*' | sort -u
}
"#;

const BASH_NODES: &str = r#"
_fusee_or_node() {
    _fusee "$@"
    # Bash takes `=` and the colon of an address for words.
    [[ ${COMP_WORDS[1]} == drain && $2 != -* && $3 != --[mst]* && $3 != [=:] ]] || return 0
    local line nodes
    read -ra line <<< "${COMP_LINE:0:COMP_POINT}"
    nodes=($(compgen -W "$(_fusee_nodes "${line[@]}")" -- "$2"))
    [[ ${#nodes[@]} -eq 0 ]] || COMPREPLY=("${nodes[@]}")
}
"#;

const FISH_NODES: &str = r#"
function __fusee_nodes
    set -l asked fusee status --json
    set -l previous
    for word in (commandline -opc)
        switch "$previous"
            case --master --secret --tls-ca --tls-cert --tls-key
                set -a asked $previous $word
        end
        switch $word
            case '--master=*' '--secret=*' '--tls-ca=*' '--tls-cert=*' '--tls-key=*'
                set -a asked $word
        end
        set previous $word
    end
    timeout 1 $asked 2>/dev/null | string match -rag '"node": *"(mn[0-9]+)"' | sort -u
end
complete -c fusee -n "__fish_fusee_using_subcommand drain" -f -a "(__fusee_nodes)"
"#;
