# Completes the first argument of a command that takes a resource; everything else is completed by _leasehold.
_leasehold_resources() {
    _leasehold "$@"
    # COMP_WORDS is split at colons, and names contain them. So split the line at spaces.
    local line="${COMP_LINE:0:COMP_POINT}" command="" arguments=0 skip=0 i
    local -a words
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    local last=$((${#words[@]} - 1))
    local cur="${words[last]}"
    for ((i = 1; i < last; i++)); do
        if ((skip)); then
            skip=0
            continue
        fi
        case "${words[i]}" in
            @OPTIONS@) skip=1 ;;
            -*) ;;
            *) if [[ -z "$command" ]]; then command="${words[i]}"; else arguments=$((arguments + 1)); fi ;;
        esac
    done
    if ((skip || arguments)) || [[ "$cur" == -* ]]; then
        return 0
    fi
    case "$command" in
        @COMMANDS@) ;;
        *) return 0 ;;
    esac
    local IFS=$'\n'
    COMPREPLY=($(compgen -W "$("$1" complete-resources "$cur" 2> /dev/null)" -- "$cur"))
    if [[ "$COMP_WORDBREAKS" == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${cur%"${cur##*:}"}"}")
    fi
}
