_ftctl() {
    local i cur prev opts cmd
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        cur="$2"
    else
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    prev="$3"
    if [[ "${prev}" == "=" && ${COMP_CWORD} -ge 2 ]]; then
        prev="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    cmd=""
    opts=""

    for i in "${COMP_WORDS[@]:0:COMP_CWORD}"
    do
        case "${cmd},${i}" in
            ",$1")
                cmd="ftctl"
                ;;
            ftctl,checkpoint-cost)
                cmd="ftctl__subcmd__checkpoint__subcmd__cost"
                ;;
            ftctl,events)
                cmd="ftctl__subcmd__events"
                ;;
            ftctl,inject)
                cmd="ftctl__subcmd__inject"
                ;;
            ftctl,jobs)
                cmd="ftctl__subcmd__jobs"
                ;;
            ftctl,show)
                cmd="ftctl__subcmd__show"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        ftctl)
            opts="-h -V --json --help --version jobs show events inject checkpoint-cost"
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -X '-*' -W "${opts}" -- "${cur}") )
            return 0
            ;;
        ftctl__subcmd__checkpoint__subcmd__cost)
            opts="-h --json --help"
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -X '-*' -W "${opts}" -- "${cur}") )
            return 0
            ;;
        ftctl__subcmd__events)
            opts="-f -h --follow --json --help"
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -X '-*' -W "${opts}" -- "${cur}") )
            return 0
            ;;
        ftctl__subcmd__inject)
            opts="-h --json --help"
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -X '-*' -W "${opts}" -- "${cur}") )
            return 0
            ;;
        ftctl__subcmd__jobs)
            opts="-h --json --help"
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -X '-*' -W "${opts}" -- "${cur}") )
            return 0
            ;;
        ftctl__subcmd__show)
            opts="-h --json --help"
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -X '-*' -W "${opts}" -- "${cur}") )
            return 0
            ;;
    esac
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _ftctl -o nosort -o bashdefault -o default ftctl
else
    complete -F _ftctl -o bashdefault -o default ftctl
fi
