_ftrun() {
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
                cmd="ftrun"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        ftrun)
            opts="-c -n -H -l -x -v -h -V --np --ft --ft-max-failures --ft-on-abort --ft-grace --ft-mpi --ft-standby --ft-spares --ft-wait --ft-oversubscribe --ft-degree --ft-flush --ft-copy-rate --ft-heartbeat --ft-inject --host --hosts --machinefile --hostfile --ft-output --ft-summary --npernode --perhost --ppn --bind-to --map-by --cpus-per-proc --cpus-per-rank --report-bindings --tag-output --prepend-rank --output-filename --timeout --env --genv --mca --wdir --chdir --oversubscribe --allow-run-as-root --verbose --help --version"
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --np)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -n)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ft)
                    COMPREPLY=($(compgen -W "none reinit" -- "${cur}"))
                    return 0
                    ;;
                --ft-max-failures)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ft-on-abort)
                    COMPREPLY=($(compgen -W "end recover" -- "${cur}"))
                    return 0
                    ;;
                --ft-grace)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ft-mpi)
                    COMPREPLY=($(compgen -W "auto openmpi mpich" -- "${cur}"))
                    return 0
                    ;;
                --ft-standby)
                    COMPREPLY=($(compgen -W "none exec init" -- "${cur}"))
                    return 0
                    ;;
                --ft-spares)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ft-wait)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ft-oversubscribe)
                    COMPREPLY=($(compgen -W "yes no" -- "${cur}"))
                    return 0
                    ;;
                --ft-degree)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ft-flush)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ft-copy-rate)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ft-heartbeat)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ft-inject)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --hosts)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --host)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -H)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --hostfile)
                    local oldifs
                    if [ -n "${IFS+x}" ]; then
                        oldifs="$IFS"
                    fi
                    IFS=$'\n'
                    COMPREPLY=($(compgen -f "${cur}"))
                    if [ -n "${oldifs+x}" ]; then
                        IFS="$oldifs"
                    fi
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o filenames
                    fi
                    return 0
                    ;;
                --machinefile)
                    local oldifs
                    if [ -n "${IFS+x}" ]; then
                        oldifs="$IFS"
                    fi
                    IFS=$'\n'
                    COMPREPLY=($(compgen -f "${cur}"))
                    if [ -n "${oldifs+x}" ]; then
                        IFS="$oldifs"
                    fi
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o filenames
                    fi
                    return 0
                    ;;
                --ft-output)
                    COMPREPLY=($(compgen -W "once all" -- "${cur}"))
                    return 0
                    ;;
                --ft-summary)
                    COMPREPLY=($(compgen -W "yes no" -- "${cur}"))
                    return 0
                    ;;
                --ppn)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --npernode)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --perhost)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --bind-to)
                    COMPREPLY=($(compgen -W "core numa socket none" -- "${cur}"))
                    return 0
                    ;;
                --map-by)
                    COMPREPLY=($(compgen -W "slot core numa socket" -- "${cur}"))
                    return 0
                    ;;
                --cpus-per-rank)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cpus-per-proc)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --output-filename)
                    local oldifs
                    if [ -n "${IFS+x}" ]; then
                        oldifs="$IFS"
                    fi
                    IFS=$'\n'
                    COMPREPLY=($(compgen -f "${cur}"))
                    if [ -n "${oldifs+x}" ]; then
                        IFS="$oldifs"
                    fi
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o filenames
                    fi
                    return 0
                    ;;
                --timeout)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -x)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --env)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --genv)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mca)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --chdir)
                    COMPREPLY=()
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o plusdirs
                    fi
                    return 0
                    ;;
                --wdir)
                    COMPREPLY=()
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o plusdirs
                    fi
                    return 0
                    ;;
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
    complete -F _ftrun -o nosort -o bashdefault -o default ftrun
else
    complete -F _ftrun -o bashdefault -o default ftrun
fi
