using System;
using System.IO;
using System.Linq;
using System.Threading.Tasks;
using Quire;

/// <summary>
/// Asks each of several documents each of several questions, all at once. Arguments: a model, text files, "--",
/// questions. A document is read once; each question goes on in a fork, which shares what was read.
/// </summary>
internal static class Forks
{
    private static int Main(string[] arguments)
    {
        int end = Array.IndexOf(arguments, "--");
        if (end < 2 || end == arguments.Length - 1)
        {
            Console.Error.WriteLine("usage: Forks MODEL DOCUMENT... -- QUESTION...");
            return 2;
        }
        string[] paths = arguments.Skip(1).Take(end - 1).ToArray(), questions = arguments.Skip(end + 1).ToArray();
        using (var runtime = new Runtime())
        using (Model model = runtime.LoadModel(arguments[0]))
        {
            Task<string[]>[] answers = paths.Select(path => Task.Run(() => Read(model, path, questions))).ToArray();
            for (int document = 0; document < paths.Length; document++)
                for (int question = 0; question < questions.Length; question++)
                    Console.WriteLine("{0}: {1}{2}", Path.GetFileName(paths[document]), questions[question],
                        answers[document].Result[question]);
        }
        return 0;
    }

    private static string[] Read(Model model, string path, string[] questions)
    {
        using (Session document = model.CreateSession("dca"))
        {
            document.Feed(File.ReadAllText(path));
            document.Prefill();
            // Forks are made one after the other, for a session is used by one thread at a time; they answer at once.
            return Task.WhenAll(questions.Select(question => Answer(document.Fork(), question))).Result;
        }
    }

    private static Task<string> Answer(Session fork, string question)
    {
        return Task.Run(() =>
        {
            using (fork)
            {
                fork.Feed(" " + question);
                return string.Concat(fork.Generate(new StreamOptions { MaxTokens = 20, StopStrings = new[] { "\n" } }));
            }
        });
    }
}
