// particles: a std::vector that grows at every step, and a std::map, protected in C++. Each rank has particles of its own.
//
//     mpicxx -o particles containers/particles.cpp $(pkg-config --cflags --libs ftd-client)
//     ftrun -n 2 --ft=reinit ./particles 500 20        (steps, and milliseconds of pause per step: ten seconds)
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ft.h>
#include <map>
#include <mpi.h>
#include <sstream>
#include <string>
#include <type_traits>
#include <unistd.h>
#include <vector>

struct Particle {
    double place[3], speed[3];
    std::int64_t number;
};
static_assert(std::is_trivially_copyable<Particle>::value, "its bytes are all there is to it");

static void check(int code, const char *what) {
    if (code != FT_OK) {
        std::fprintf(stderr, "particles: %s: %s\n", what, ft_strerror(code));
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

static std::uint64_t step, lengths[2];          // protected under 0 and 1
static std::vector<Particle> particles;         // 2
static std::map<std::string, double> totals;    // 3, as text
static std::string text;

// What has moved or grown since is protected anew.
static void protect_containers() {
    check(ft_protect(2, particles.data(), particles.size() * sizeof(Particle)), "ft_protect");
    check(ft_protect(3, &text[0], text.size()), "ft_protect");
}

static void checkpoint() {
    std::ostringstream out;
    out << std::hexfloat;
    for (const auto &entry : totals)
        out << entry.first << ' ' << entry.second << '\n';
    text = out.str();
    lengths[0] = particles.size();
    lengths[1] = text.size();
    protect_containers();
    check(ft_checkpoint(step), "ft_checkpoint");
}

static bool restore() {
    std::uint64_t version;
    int code = ft_restore(&version); // the lengths
    if (code == FT_ERR_NONE)
        return false;
    check(code, "ft_restore");
    particles.resize(lengths[0]);
    text.resize(lengths[1]);
    protect_containers();
    check(ft_restore(&version), "ft_restore"); // the rest
    std::istringstream in(text);
    for (std::string name, value; in >> name >> value;)
        totals[name] = std::strtod(value.c_str(), nullptr);
    return true;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    std::uint64_t steps = argc > 1 ? std::atoi(argv[1]) : 40;
    int pause = argc > 2 ? std::atoi(argv[2]) : 0, rank, state;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    check(ft_init(&state), "ft_init");
    check(ft_protect(0, &step, sizeof step), "ft_protect");
    check(ft_protect(1, lengths, sizeof lengths), "ft_protect");
    if (restore() && rank == 0)
        std::printf("restarted from version %llu\n", (unsigned long long)step);
    while (step < steps) {
        step++;
        for (std::uint64_t i = 0; i < step * 7 % 50; i++)
            particles.push_back({{0.1 * rank, 0.01 * i, 1.0 / step}, {1.0 / (i + 1), 0.5, 0.25}, (std::int64_t)particles.size()});
        double sum = 0, all;
        for (auto &particle : particles)
            for (int axis = 0; axis < 3; axis++)
                sum += particle.place[axis] = particle.place[axis] * 0.75 + particle.speed[axis];
        totals["step" + std::to_string(step % 13)] += sum / 3;
        for (const auto &entry : totals)
            sum += entry.second;
        MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0)
            std::printf("step %d hash %08zu%016llx\n", (int)step, particles.size(), (unsigned long long)(all * 1e6));
        usleep(pause * 1000);
        if (step % 4 == 0)
            checkpoint();
    }
    check(ft_finalize(), "ft_finalize");
    MPI_Finalize();
}
